// Keys and values of earlier tokens, as transformers' DynamicCache holds them (cache_utils.py, 4.57 and 5.24).
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// Joins a layer's keys and values to those that are there, and leaves both in the context's cache. A cache that grows has room
/// for D tokens behind this one and had R before it.
void join_cache(Eager& g, const KernelOptions&, const LayerContext&, Tensor& key, Tensor& value);

/// Why keys and values of this model are not described in such a cache; "" when they are.
std::string unsupported_cache(const Architecture&);

}  // namespace oomplan
