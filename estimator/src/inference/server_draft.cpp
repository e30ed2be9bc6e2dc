#include "inference/server_draft.hpp"

#include <numeric>

#include <oomplan/units/errors.hpp>

namespace oomplan {
namespace {

/// What stands beside the layers, on every rank whole: the projection of what is read into one state, its bias, norms, and the
/// numbers of the tokens that a smaller head knows.
/// EAGLE: 2h -> h, with a bias in SGLang; the first layer has no norm in front of its attention, and there is no last norm
/// (vllm/model_executor/models/llama_eagle.py, 0.9 to 0.24; sglang/srt/models/llama_eagle.py, 0.5.10).
/// EAGLE-3: states of three layers -> h, a second norm in every layer and a last one; vLLM may norm the states first
/// (vllm/model_executor/models/llama_eagle3.py, 0.9 to 0.24; sglang/srt/models/llama_eagle3.py, 0.5.10).
Bytes beside_layers(const ServerModel& m, const Architecture& draft, DraftMethod method) {
  const std::int64_t h = draft.hidden;
  if (method == DraftMethod::eagle) {
    const std::int64_t bias = m.engine == EngineKind::sglang ? h : 0;
    return bytes_of(2 * h * h + bias - h, m.compute);
  }
  const bool vllm = m.engine == EngineKind::vllm;
  const std::int64_t states = vllm ? draft.draft.states : 3,
                     read = states * (draft.draft.target_hidden > 0 ? draft.draft.target_hidden : h);
  const std::int64_t norms = draft.layers() * h + h + (vllm && draft.draft.norm_before_projection ? read : 0);
  return bytes_of(read * h + norms, m.compute) + bytes_of(draft.draft.vocab, DType::int64);
}

/// EAGLE has the model's head (llama_eagle.py, set_embed_and_head). EAGLE-3 has its own; SGLang's is the model's where the draft
/// states no vocabulary of its own, or ties its head to the embedding.
std::int64_t head_rows(const ServerModel& m, const Architecture& draft, DraftMethod method) {
  if (method == DraftMethod::eagle) return 0;
  if (m.engine == EngineKind::sglang && (draft.tied || draft.draft.vocab == 0)) return 0;
  return draft.draft.vocab > 0 ? draft.draft.vocab : draft.vocab;
}

}  // namespace

Architecture draft_as_built(const Server& server) {
  if (server.draft.architecture == nullptr)
    throw InputError(Problem{{}, "'" + server.draft_model + "'", "a draft_model that was looked up", "", ""});
  const DraftMethod method = draft_method(server);
  Architecture out = *server.draft.architecture;
  if (out.runs.empty() || (method != DraftMethod::eagle && method != DraftMethod::eagle3))
    throw InputError(
        Problem{{}, "'" + server.draft_model + "'", "an EAGLE or EAGLE-3 head", "", "not supported yet: other drafts"});
  out.mtp = {};
  out.tower = {};
  out.quantization = {};
  if (method == DraftMethod::eagle) return out;
  LayerRun first{out.runs.front().layer, 1};  // reads the embedding beside the state
  first.layer.mixer.input_width = 2 * out.hidden;
  if (--out.runs.front().count == 0) out.runs.erase(out.runs.begin());
  out.runs.insert(out.runs.begin(), first);
  return out;
}

void add_draft(ServerModel& m, const Architecture& draft, DraftMethod method, const ServerModel& layers) {
  const auto kinds = static_cast<int>(m.kinds.size());
  for (const ServerLayer& kind : layers.kinds) m.kinds.push_back(kind);
  for (const ServerLayerRun& run : layers.totals) m.drafts.push_back({run.kind + kinds, run.count});
  m.draft_outside = beside_layers(m, draft, method);
  m.draft.hidden = draft.hidden;
  m.draft.vocab = draft.vocab;
  m.draft.own_embedding = draft.hidden != m.hidden;
  m.draft.head_rows = head_rows(m, draft, method);
  m.draft.row = bytes_of(draft.hidden, m.compute);
  // a table of the same rotary size, positions and base is the model's (get_rope of both engines keeps them by these)
  if (layers.rope_elements != m.rope_elements) m.draft.rope_elements = layers.rope_elements;
  if (method == DraftMethod::eagle3) m.draft.states = m.engine == EngineKind::vllm ? draft.draft.states : 3;
  m.draft.loads_embedding = !m.draft.own_embedding;
  // vLLM's EAGLE class has no head before it gets the model's; SGLang's have one unless it is the embedding (llama_eagle.py)
  m.draft.loads_head = m.engine == EngineKind::sglang && m.draft.head_rows == 0 && !draft.tied;
  m.heads = std::gcd(m.heads, layers.heads);
  m.kv_heads = std::gcd(m.kv_heads, layers.kv_heads);
}

}  // namespace oomplan
