// Adapters that are vectors: VeRA and IA3 as huggingface/peft runs them, and the factors and offsets of LitGPT's second adapter.
//
// Read in huggingface/peft src/peft/tuners/vera/layer.py, src/peft/tuners/ia3/layer.py (0.21.2) and Lightning-AI/litgpt
// litgpt/adapter_v2.py (0.3.1, 0.4.13); executed (tests/data/executed_vectors.jsonl).
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Declares VeRA's frozen pair, which all matrices share, in front of the layers: as wide as the widest matrices with adapters.
void declare_vera_pair(Eager& g, const Architecture&, const AdapterOptions&);

/// Puts the kind's trained vectors beside the matrix of that name, [out, in].
void add_vectors(Eager& g, int matrix, const std::string& name, std::int64_t out, std::int64_t in, const AdapterOptions&);

/// Does the matrix have vectors of VeRA or IA3?
bool has_peft_vectors(const Leaf&);

namespace ops {
/// peft's layer around the matrix.
Tensor linear_with_vectors(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out, const std::string& name,
                           Category category);
/// adapter_scale * (linear + adapter_bias), for a matrix that has them.
Tensor scaled_and_shifted(Eager& g, Tensor linear, const Leaf&, const std::string& name);
}  // namespace ops

}  // namespace oomplan
