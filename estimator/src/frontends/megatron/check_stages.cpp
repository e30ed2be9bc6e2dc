// Layers that Megatron cannot deal to stages and chunks: megatron/training/arguments.py (validate_args) and
// megatron/core/transformer/transformer_config.py (__post_init__), 0.16.1.
#include <fmt/format.h>

#include "frontends/megatron/run.hpp"

namespace oomplan::megatron {
namespace {

constexpr const char* kFirst = "decoder_first_pipeline_num_layers";
constexpr const char* kLast = "decoder_last_pipeline_num_layers";
constexpr const char* kEmbedding = "account_for_embedding_in_pipeline_split";
constexpr const char* kLoss = "account_for_loss_in_pipeline_split";
constexpr const char* kPerChunk = "num_layers_per_virtual_pipeline_stage";
constexpr const char* kChunks = "num_virtual_stages_per_pipeline_rank";
constexpr const char* kLayout = "pipeline_model_parallel_layout";

std::string layers_place(const Arguments& a) { return a.place(a.has("num_layers") ? "num_layers" : "encoder_num_layers"); }

/// The stated stages, and those between them.
void check_uneven(const Arguments& a, const Run& r, Complaints& out) {
  if (a.on(kEmbedding) || a.on(kLoss)) {
    const char* const other = a.on(kEmbedding) ? kEmbedding : kLoss;
    out.add(a.place(other), "the flag", "nothing beside stated layers of the first or last stage",
            "the layers of a stage are either stated, or the embedding and the loss count as layers");
  }
  if (a.has(kPerChunk) && !a.has(kChunks))
    out.add(a.place(kPerChunk), "the flag", "--num-virtual-stages-per-pipeline-rank in its place",
            "with uneven stages the number of chunks must be stated, not their layers");
  std::int64_t rest = r.layers, stages = r.pipeline;
  for (const char* const name : {kFirst, kLast}) {
    const auto n = a.whole(name);
    if (!n) continue;
    if (*n <= 0) return out.add(a.place(name), fmt::format("{}", *n), "at least 1", "a stage needs layers");
    if (*n % r.chunks != 0)
      out.add(a.place(name), fmt::format("{}", *n), fmt::format("a multiple of {} chunks", r.chunks),
              "the layers of a stage must be divisible by its virtual stages");
    rest -= *n;
    --stages;
  }
  const std::string place = a.place(a.has(kFirst) ? kFirst : kLast);
  if (rest < 0 || (rest > 0) != (stages > 0))
    out.add(place, fmt::format("{} layers left for {} stages", rest, stages), "layers for the stages between, and none without",
            "stages between the stated ones and their layers must go together");
  else if (stages > 0 && rest % stages != 0)
    out.add(place, fmt::format("{} layers left for {} stages", rest, stages), fmt::format("a multiple of {} layers", stages),
            "the stages between the stated ones must have equally many layers");
  else if (stages > 0 && rest / stages % r.chunks != 0)
    out.add(place, fmt::format("{} layers on a stage", rest / stages), fmt::format("a multiple of {} chunks", r.chunks),
            "the layers of a stage must be divisible by its virtual stages");
}

void check_even(const Arguments& a, const Run& r, Complaints& out) {
  const std::int64_t more = (a.on(kEmbedding) ? 1 : 0) + (a.on(kLoss) ? 1 : 0), counted = r.layers + more;
  const std::string found =
      more == 0 ? fmt::format("{}", r.layers) : fmt::format("{} and {} for embedding or loss", r.layers, more);
  if (counted % r.pipeline != 0)
    return out.add(layers_place(a), found,
                   fmt::format("a multiple of {} ({})", r.pipeline, a.place("pipeline_model_parallel_size")),
                   "the number of layers must be divisible by the pipeline-parallel size");
  const std::int64_t stage = counted / r.pipeline;
  if (const auto each = a.whole(kPerChunk); each && *each > 0 && !a.has(kChunks) && stage % *each != 0)
    out.add(a.place(kPerChunk), fmt::format("{}", *each), fmt::format("a divisor of the {} layers of a stage", stage),
            "the layers of a stage must be divisible by those of a virtual stage");
  else if (stage % r.chunks != 0)
    out.add(a.place(kChunks), fmt::format("{}", r.chunks), fmt::format("a divisor of the {} layers of a stage", stage),
            "the layers of a stage must be divisible by its virtual stages");
}

}  // namespace

void check_stages(const Arguments& a, const Run& r, Complaints& out) {
  std::vector<const char*> ways;
  for (const char* const name : {kPerChunk, kChunks, kLayout})
    if (a.has(name)) ways.push_back(name);
  for (std::size_t i = 1; i < ways.size(); ++i)
    out.add(a.place(ways[i]), fmt::format("beside {}", a.place(ways[0])), "one of them",
            "virtual stages are said in one way: layers of each, their number, or a layout");
  if (a.has(kLayout)) return;
  if (r.uneven)
    check_uneven(a, r, out);
  else
    check_even(a, r, out);
  const std::string place = a.place(a.has(kChunks) ? kChunks : kPerChunk);
  if (r.chunks > 1 && r.pipeline == 1)
    out.add(place, fmt::format("{} virtual stages", r.chunks), "a pipeline-parallel size above 1",
            "the interleaved schedule needs a pipeline");
  else if (r.chunks > 1 && r.pipeline == 2 && !a.on("overlap_p2p_comm"))
    out.add(place, fmt::format("{} virtual stages", r.chunks), "a pipeline-parallel size above 2",
            "without overlapped communication the interleaved schedule needs more than two stages, or two ranks would send and "
            "receive several tensors at once");
}

}  // namespace oomplan::megatron
