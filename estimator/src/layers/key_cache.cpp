#include "layers/key_cache.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "layers/families.hpp"

namespace oomplan {

// DynamicLayer.update: torch.cat makes both anew, also of the first tokens, and each takes the name of the one before. What came
// in keeps its names until update() returns. A layer with a window cuts views, which hold what they are cut from.
void join_cache(Eager& g, const KernelOptions& options, const LayerContext& context, Tensor& key, Tensor& value) {
  if (options.kv_cache == KvCache::none || context.cache == nullptr) return;
  const bool grows = options.kv_cache == KvCache::grows;
  const auto shape_of = [&](const Tensor& x, Dim tokens) {
    Shape shape = x.shape;
    if (grows) shape[2] = tokens;
    return shape;
  };
  const auto before = [&](const Tensor& x, const char* name) {
    return grows ? g.make(name, shape_of(x, axis::R), x.dtype, Category::kv_cache) : Tensor();
  };
  Tensor keys = before(key, "cache.key_before"), values = before(value, "cache.value_before");
  Tensor joined = g.make("cache.key", shape_of(key, axis::D), key.dtype, Category::kv_cache);
  keys = std::move(joined);
  joined = g.make("cache.value", shape_of(value, axis::D), value.dtype, Category::kv_cache);
  values = std::move(joined);
  context.cache->push_back(keys);
  context.cache->push_back(values);
  key = std::move(keys);
  value = std::move(values);
}

std::string unsupported_cache(const Architecture& a) {
  const FamilyCode* code = find_family_code(a.family);
  const auto described = [](const LayerRun& run) { return run.layer.mixer.kind == MixerKind::attention; };
  if (code == nullptr || !std::all_of(a.runs.begin(), a.runs.end(), described))
    return fmt::format("a cache of '{}', whose layers keep something else than keys and values", a.family);
  if (code->own != OwnCode::none || code->alibi || code->norms_values)
    return fmt::format("a cache of keys and values of '{}'", a.family);
  return {};
}

}  // namespace oomplan
