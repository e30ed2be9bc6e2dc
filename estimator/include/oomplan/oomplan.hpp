// oomplan: how much memory every GPU of an LLM job needs at its worst moment, before it is launched.
//
// A Job says which models run where, on which engines, and in what turns. `read` makes one from a file, `estimate` answers for
// it, `search` finds a better one. Sizes are bytes (Bytes), device memory unless a name says host. All functions are pure and
// safe to call from any thread. Wrong input throws InputError, which lists every problem found, each with its place. Nothing
// here reads the network.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>

#include <oomplan/job.hpp>
#include <oomplan/program.hpp>

namespace oomplan {
class Catalog;  // models, GPUs, engine facts; the built-in one unless given
}

namespace oomplan OOMPLAN_PUBLIC {

/// The built-in catalog with the files of a directory laid over it (as `--models`); "": the built-in one. Throws InputError.
std::shared_ptr<const Catalog> open_catalog(const std::string& directory = {});

/// Something the reader should know: an ignored key, a default taken, a bound.
struct Note {
  enum class Level : std::uint8_t { info, warning };
  Level level = Level::info;
  Place place;
  std::string text;
};

/// The text of a job: a job file, a framework's file, or a script or command that starts a job, of which nothing is run
/// (docs/launch.md). `dialect`: "" (recognise), "oomplan", "areal", "megatron", "server" or "launch" (a script). Overrides are
/// "actor.tokens_per_micro_batch=16k", or as the framework has them: "actor.mb_spec.max_tokens_per_mb=16384".
struct Source {
  std::string text = {};
  std::string name = {};
  std::string dialect = {};
  std::vector<std::string> overrides = {};
  // for files of a framework
  std::string framework_version = {};  ///< "1.0.4"; "" the newest that reads the file
  std::string gpu = {};                ///< kind of the GPUs, which no framework's file says; "" H100-80GB
  std::string host_memory = {};        ///< of a node, as a knob has it: "1TB"; "" unknown
  std::int64_t sequence_tokens = 0;  ///< real ones of a sequence where batches count sequences; 0: as long as the settings allow
  std::string image_size = {};  ///< "640x480", width and height in pixels, "none": samples have none; "" as the settings allow
  std::string linear_attention = {};  ///< what runs it, of what is installed beside verl: "fla", "fla_conv"; "" torch
  /// Text of another file that this one names (a defaults list); empty: no other file is opened. nullopt: there is none.
  std::function<std::optional<std::string>(const std::string& path)> open = {};
  std::map<std::string, std::string> environment = {};  ///< all that ${oc.env:NAME} and a script may see
  // for scripts and commands
  std::vector<std::string> command = {};      ///< words of a command, in place of a text
  std::vector<std::string> arguments = {};    ///< of a script
  std::string folder = {};                    ///< the working folder of the script; "" unknown
  std::int64_t which = 0;                     ///< of several jobs that it starts, from 1; 0: there is one
  std::vector<Note> notes = {};               ///< what was found on the way to this text: told with the reading
  Place place = {};                           ///< of this command line in a script
  std::shared_ptr<const Source> script = {};  ///< in which this command line stands; null: it was given by itself
};
struct Reading {
  Job job;
  std::vector<Note> notes;
};
Reading read(const Source&, const Catalog* = nullptr);
/// What a framework's file means, fact by fact, as JSON: {"roles": {"actor": {"layout": {"dp": {"v": 4, "o": "derived", "w":
/// "backend string"}}}}, "refusals": [...]}. Also for jobs that cannot be estimated yet. Throws InputError for files that are
/// no framework's.
std::string facts_json(const Source&);
/// The short form that `search --gpus 8 --model qwen-7b` uses: a GRPO job with the defaults of `framework`.
Reading default_job(std::string_view model, std::int64_t gpus, std::string_view gpu = "H100-80GB", const Catalog* = nullptr);

/// What one process, or all processes of a GPU, hold at some moment.
struct Usage {
  Bytes allocated = 0;        ///< by tensors
  Bytes reserved = 0;         ///< by the caching allocator on a roomy device (from the replay; the fold's lower bound before)
  Bytes device = 0;           ///< everything on the device: reserved of all processes, contexts, NCCL, graphs
  Bytes capacity_needed = 0;  ///< smallest device on which it runs; "fits" rests on it. The fold's lower bound before the replay
  std::vector<Bytes> by_category = std::vector<Bytes>(kCategories, 0);
};
/// What an idle process holds while another one of its GPU is at work.
struct ProcessShare {
  std::string roles;  ///< "rollout", "actor, ref"
  Bytes device = 0;   ///< all of it, what its allocator keeps for later included
  std::vector<Bytes> by_category = std::vector<Bytes>(kCategories, 0);  ///< of its live tensors, its context and the like
};
/// One phase of one class of GPUs.
struct Moment {
  std::string phase;  ///< "actor.train", "rollout.generate"
  std::string role;
  std::string step;  ///< where in the phase: "backward"
  Usage usage;
  bool bound = false;            ///< an upper bound: the interleaving of two processes is not known
  std::vector<LiveTensor> live;  ///< filled by explain()
  std::int64_t allocator_retries = 0;
  std::vector<ProcessShare> beside = {};  ///< the other processes of the GPU; not of estimate_quick()
};
/// What a process holds from one mark to the next, in the order of its allocations (which is not time).
struct Stretch {
  std::string phase;          ///< as Moment::phase
  std::vector<Bytes> levels;  ///< bytes live (context and the like included), highest of each equal share; 64 at most
};
/// GPUs that run the same programs, merged.
struct GpuAnswer {
  std::string ranks;  ///< "actor 0-3"
  std::vector<std::int64_t> gpus;
  std::string gpu;  ///< kind
  Bytes usable = 0;
  std::vector<Moment> phases;  ///< in the job's order
  std::size_t worst = 0;       ///< index into phases
  std::vector<Stretch> curve;  ///< filled by explain(): the process of the worst phase, its second iteration
  /// P(the worst moment fits), from errors measured on real GPUs; nullopt: not replayed, or nothing was measured.
  std::optional<double> fit_probability = {};
  bool fits() const { return phases.empty() || phases[worst].usage.capacity_needed <= usable; }
};
struct HostAnswer {
  std::string nodes;
  Bytes usable = 0;  ///< 0: unstated
  std::vector<std::pair<std::string, Bytes>> phases;
  std::size_t worst = 0;
};
/// What happens to the requests of one replica when all of them are asked for at once and every response grows to its full length
/// (docs/serve.md, "In service"). Tokens are those of one replica.
struct InService {
  std::int64_t prompt = 0, response = 0;  ///< tokens of one request
  std::int64_t samples = 1;               ///< responses to one prompt
  std::int64_t shared_tokens = 0;         ///< of a prompt: held once for all of its responses
  std::int64_t at_once = 0;               ///< let in before the first one ends
  std::int64_t to_the_end = 0;            ///< that many could end together without giving anything up
  std::int64_t given_up = 0;              ///< preempted (vLLM) or retracted (SGLang) at least once, of the first ones let in
  std::int64_t waiting = 0;               ///< asked for and not let in at once
  std::int64_t full_at = 0;               ///< token of the responses at which the pool is full; 0: never
  std::int64_t recomputed_tokens = 0;     ///< prompts and responses that are computed again
  std::int64_t tokens_wanted = 0;         ///< that those let in would hold at their ends, prompts shared
  std::string cause;  ///< what makes the first one wait or give up: "max_running_requests", "kv_pool", "state_slots", "reserve";
                      ///< "": nobody
};
/// What a server's memory holds against what the job asks of it. A shortage queues or preempts requests; it is not OOM.
struct ServerAnswer {
  std::string role;
  Bytes weights = 0, kv_pool = 0, non_kv = 0;  ///< per GPU; non_kv: besides these two
  std::int64_t kv_tokens = 0;                  ///< of one replica
  Bytes kv_bytes_per_token = 0;                ///< on one GPU
  std::int64_t requests_of_full_length = 0;    ///< that one replica holds at once
  std::int64_t requests_asked = 0;             ///< of one replica; 0: unstated
  std::int64_t tokens_per_request = 0;
  std::optional<InService> in_service = {};  ///< where lengths and the number of requests are stated
  bool refused = false;                      ///< the engine itself would not start; `shortage` says why
  std::string shortage;                      ///< "" or one sentence
};
/// How good such numbers were on measured cases (the accuracy table).
struct Evidence {
  std::string like;  ///< "fsdp2 train step"
  int measurements = 0;
  double error_p50_percent = 0, error_p95_percent = 0;
};
/// Changes of a job in the words of its file.
struct Patch {
  std::vector<std::string> overrides;  ///< to append to the command line
  bool in_file = true;                 ///< the job stands in a file; false: on a command line alone
  std::string file;                    ///< the text of the file with the changes made in it; "" when it cannot be edited so
  std::string diff;                    ///< from the file to that, for `patch -p0`
  std::vector<std::string> stale;      ///< arguments of the command line that would undo the diff: to be left out with it
};
/// A change that was judged by a second estimate.
struct Remedy {
  std::string key;  ///< "actor.tokens_per_micro_batch"; of a framework's file "actor.mb_spec.max_tokens_per_mb"
  std::string from, to;
  std::string text;  ///< what it does and costs
  Effect effect = Effect::speed;
  Bytes gain = 0;     ///< at the worst moment of the job
  bool fits = false;  ///< alone it is enough
  // of advise(Source)
  std::optional<double> step_time = {};  ///< with it, where today's step is 1; nullopt: not modelled
  double cost = 0;                       ///< more GPU time for a step: 0.3 is 30 %; 1 where it is not modelled
  Patch patch = {};
};
struct Estimate {
  std::vector<GpuAnswer> gpus;  ///< worst first
  std::vector<HostAnswer> hosts;
  std::vector<ServerAnswer> servers;
  Evidence evidence;
  /// The least of the GPUs' (see docs/estimate.md); 0 where a server or a host refuses.
  std::optional<double> fit_probability = {};
  std::vector<Note> notes;
  std::vector<Remedy> remedies;  ///< filled by advise() and explain()
  bool explained = false;
  bool replayed = false;  ///< `reserved` and `capacity_needed` are the allocator's, not lower bounds
  bool fits() const;
};
/// Does it fit, and what does every GPU need in every phase? Milliseconds: the allocator of every process is replayed.
Estimate estimate(const Job&, const Catalog* = nullptr);
/// Levels alone, in microseconds to a millisecond: `reserved` and `capacity_needed` are lower bounds, without what fragmentation
/// costs, and there is no probability. For whoever asks a million times.
Estimate estimate_quick(const Job&, const Catalog* = nullptr);
/// As estimate(), and names what is live.
Estimate explain(const Job&, const Catalog* = nullptr);
/// The single changes that lower the worst moment most, strongest first. Only effects up to `allow`.
std::vector<Remedy> advise(const Job&, Effect allow = Effect::speed, const Catalog* = nullptr);
/// One override, with what it was.
struct Change {
  std::string key, from, to;
  Effect effect = Effect::speed;
};
/// Changes that are enough together where none is alone, judged by an estimate of their own.
struct Together {
  std::vector<Change> changes;
  std::vector<std::string> texts;  ///< what each setting does and costs
  Effect effect = Effect::speed;   ///< the strongest of them
  Bytes gain = 0;
  std::optional<double> fit_probability = {};
  std::optional<double> step_time = {};  ///< as Remedy::step_time
  double cost = 0;                       ///< as Remedy::cost
  Patch patch = {};
};
/// GPUs on which the job would fit where no single change of it is enough.
struct Hardware {
  std::string gpu;        ///< kind
  std::int64_t gpus = 0;  ///< of the whole job
  std::string changes;    ///< "" the job as it is; otherwise what is changed with it, as Together names it
  Patch patch = {};       ///< empty where only --gpu says it
};
/// What to change in a file, in its own words, the most gain for the least cost first.
/// A phase that does not fit, on the GPUs that need most in it, and the tensors at fault.
struct Cause {
  std::string phase;                 ///< "actor.backward"
  std::string ranks;                 ///< "actor 0-3"
  Bytes needed = 0, usable = 0;      ///< device bytes of one GPU; equal when a server refuses by itself
  Bytes others = 0;                  ///< of `needed`: held by other processes on these GPUs
  std::vector<ProcessShare> beside;  ///< these processes
  std::string text;                  ///< what runs then, in the words of the framework's guide
  std::string log;                   ///< file in which the framework will say so; "": unknown
  std::vector<LiveTensor> tensors;   ///< what is live at the highest moment, largest first, at most five
};
struct Advice {
  Reading reading;
  Estimate estimate;          ///< as the file is
  std::vector<Cause> causes;  ///< what does not fit, in the order of the run: the first is where the job ends
  std::vector<Remedy> remedies;
  std::vector<Remedy> other_tasks;     ///< would help, but change what is trained: only with Effect::semantics are they remedies
  std::optional<Together> together;    ///< the cheapest pair or triple that is enough, where no remedy is
  std::optional<Hardware> larger_gpu;  ///< the smallest kind of GPU that would do, where no remedy is enough
  std::optional<Hardware> more_gpus;   ///< the smallest number of GPUs, likewise
  std::vector<Note> left_out;          ///< would help, but the framework's file cannot say it: why
};
Advice advise(const Source&, Effect allow = Effect::speed, const Catalog* = nullptr);
/// `changes` (our keys and values, as in a job file) in the file's own words. Throws InputError when the framework cannot say
/// one.
Patch patch(const Source&, const std::vector<std::pair<std::string, std::string>>& changes, const Catalog* = nullptr);
/// The program of one role on one GPU, all phases in order.
Program program(const Job&, std::string_view role, const Catalog* = nullptr);

/// What a search may change, and what it solves for.
struct Space {
  std::optional<std::int64_t> gpus;
  Effect allow = Effect::speed;
  std::string maximise;            ///< "" | "tokens" | "fraction" | "concurrency" | "length"
  std::vector<std::string> fixed;  ///< keys that stay as they are
  double min_probability = 0.9;    ///< least Estimate::fit_probability of a candidate; where nothing was measured any will do
  int threads = 1;
};
struct Candidate {
  Job job;
  Estimate estimate;
  std::vector<Change> changes;
  std::vector<std::string> overrides;  ///< to append to the command line
  std::string job_file;                ///< native YAML; of a framework's file that file, changed, "" when it cannot be edited so
  std::string diff;                    ///< of search(Source)
  double relative_step_time = 1;       ///< best = 1
  double relative_throughput = 0;      ///< of a server by itself: tokens it writes in a second, best = 1; 0: another job
};
/// What stopped an axis when nothing fits, and by how much.
struct Limit {
  std::string phase;
  std::string axis;
  Bytes missing = 0;
  std::string text;
};
struct Found {
  std::vector<Candidate> best;
  /// The job before any change, whether it fits or not; its step time is 0 where it is not modelled. Nothing where nothing was
  /// found, and of servers by themselves.
  std::optional<Candidate> as_it_stands;
  std::int64_t judged = 0, fitting = 0;
  std::int64_t estimated = 0;  ///< of the judged, where the others were looked at by a lower bound alone (Megatron); 0: all
  std::vector<Limit> limits;
  std::optional<std::int64_t> smallest_gpus;  ///< that would fit, when nothing does
  double min_probability = 0;                 ///< that was asked for
  std::int64_t unlikely = 0;                  ///< of the fitting, left out: their probability is lower
  double unlikely_step_time = 0;              ///< of the fastest of those, where best = 1; 0: not known
  bool interrupted = false;                   ///< stopped before all were judged: nothing is said of the others
};
Found search(const Job&, const Space& = {}, int keep = 10, const Catalog* = nullptr, std::stop_token = {});

/// The same from a file: what it says is where the search begins, and candidates come in its own words.
Found search(const Source&, const Space& = {}, int keep = 10, const Catalog* = nullptr, std::stop_token = {});

struct TextStyle {
  bool colour = false;
  bool unicode = false;  ///< bars in block characters; plain ASCII otherwise
  int width = 100;
};
std::string to_text(const Estimate&, const Job&, const TextStyle& = {});
std::string to_text(const Found&, const Job&, const TextStyle& = {});
std::string to_text(const Advice&, const TextStyle& = {});
std::string to_json(const Estimate&, const Job&);
std::string to_json(const Found&, const Job&);
std::string to_json(const Advice&);
/// A self-contained fragment with inline styles, for notebooks.
std::string to_html(const Estimate&, const Job&);
/// The Job as native YAML; reading it again gives the same Job.
std::string to_yaml(const Job&);
std::string to_json(const Job&);
/// Of the library: "0.1.0".
std::string_view version();

}  // namespace oomplan
