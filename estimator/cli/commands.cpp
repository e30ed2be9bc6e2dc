// The table of commands and their help.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "command.hpp"

namespace oomplan::cli {
namespace {

constexpr std::array<OptionRow, 4> kCommon{{
    {"json", "", "print JSON (docs/schema) in place of text"},
    {"color", "WHEN", "always, never or auto (the default: when standard output is a terminal and NO_COLOR is not set)"},
    {"models", "DIR", "lay the files of DIR over the built-in models, GPUs and engine facts"},
    {"help", "", "show this help"},
}};
constexpr OptionRow kRelease{"framework-version", "V",
                             "release of the framework whose file or command it is: 1.0.4 (default: the newest that reads it)"};
constexpr OptionRow kGpu{"gpu", "KIND",
                         "kind of GPU where the file does not say it (default H100-80GB; `oomplan gpus` lists them)"};
constexpr OptionRow kRoot{"config-root", "DIRS",
                          "folders besides FILE's own whose files its defaults lists may name, separated by commas"};
constexpr OptionRow kGpus{"gpus", "N", "number of GPUs where a command line behind --, or a file of Oumi, does not say it"};
constexpr OptionRow kNamed{"model", "NAME", "the model, in place of the shape that the command line's flags say"};
constexpr OptionRow kSet{"set", "NAME=VALUE",
                         "a variable that a script or command sees, besides those of the environment; any number of times"};
constexpr OptionRow kHost{"host-memory", "SIZE", "memory of a node, such as 1TB: whether the host's part fits is judged, too"};
constexpr OptionRow kLengths{"sequence-tokens", "N",
                             "verl, slime, Relax, Oumi, TRL: tokens of a sequence, prompt and response, where samples are "
                             "shorter or longer than the settings say"};
constexpr OptionRow kImages{
    "image-size", "WxH",
    "verl, Relax, Oumi: pixels of a sample's image, 640x480, or none; otherwise as large as a prompt allows"};
constexpr OptionRow kStates{"linear-attention", "WHAT",
                            "verl: what runs it in trainers: torch, fla (flash-linear-attention is installed) or fla_conv "
                            "(causal-conv1d, too)"};
constexpr OptionRow kWhich{"command", "N", "which of several jobs that a script starts"};
constexpr std::array<OptionRow, 13> kAdvise{{
    kRelease,
    kRoot,
    kGpu,
    kGpus,
    kSet,
    kWhich,
    kHost,
    kLengths,
    kImages,
    kStates,
    {"allow", "EFFECTS", "what may change besides speed: numerics, semantics, separated by commas"},
    {"diff", "N", "print the N-th change as a diff of FILE in place of the table"},
    {"guide", "", "verl, slime, Relax, Oumi: the guide point by point, and what each would do to this job"},
}};
constexpr std::array<OptionRow, 12> kEstimate{{
    kRelease,
    kRoot,
    kGpu,
    kGpus,
    kNamed,
    kSet,
    kWhich,
    kHost,
    kLengths,
    kImages,
    kStates,
    {"quick", "", "do not replay the allocator: what is reserved and needed are then lower bounds; no changes are tried"},
}};
constexpr std::array<OptionRow, 11> kCheck{
    {kRelease, kRoot, kGpu, kGpus, kNamed, kSet, kWhich, kHost, kLengths, kImages, kStates}};
constexpr std::array<OptionRow, 15> kExplain{{
    kRelease,
    kRoot,
    kGpu,
    kGpus,
    kNamed,
    kSet,
    kWhich,
    kHost,
    kLengths,
    kImages,
    kStates,
    {"save-snapshot", "F", "write the run of the fullest GPU as a memory snapshot that pytorch.org/memory_viz opens"},
    {"recorded", "F", "a memory snapshot of this job (torch.cuda.memory._dump_snapshot): what it holds beside what is predicted"},
    {"phase", "NAME", "with --recorded: the phase to compare with, actor.forward (default: the one that is most like it)"},
    {"top", "N", "with --recorded: how many sizes of blocks to show (default 12)"},
}};
constexpr std::array<OptionRow, 12> kRead{{
    kRelease,
    kRoot,
    kGpu,
    kGpus,
    kNamed,
    kSet,
    kWhich,
    kLengths,
    kImages,
    kStates,
    {"commands", "", "the programs that a script or command would start, in order, in place of the job"},
    {"facts", "", "what a framework's file means, fact by fact, with who says so (JSON)"},
}};
constexpr OptionRow kMinProbability{"min-probability", "P",
                                    "leave out what fits with a lower probability than this, 0 to 1 (default 0.9)"};
constexpr std::array<OptionRow, 28> kSearch{{
    kRelease,
    kRoot,
    kSet,
    kWhich,
    kLengths,
    kImages,
    kStates,
    {"model", "NAME", "a job that one has in mind, without a file: GRPO of this model (with --gpus)"},
    {"gpus", "N", "number of GPUs"},
    kGpu,
    {"nodes", "N", "machines that the GPUs are in (default: 8 GPUs in each)"},
    {"framework", "NAME", "in whose words the job is said: areal (the default), verl, or oomplan for a job file of ours"},
    {"algorithm", "NAME", "grpo (the default), ppo, dapo, sft or dpo"},
    {"prompt-tokens", "N", "of the longest prompt (default 1024); of sft and dpo: of a sequence (4096)"},
    {"response-tokens", "N", "of the longest response (default 8192)"},
    {"samples", "N", "responses to one prompt (default 8)"},
    {"batch", "N", "prompts or sequences of a step (default 128)"},
    {"lora", "RANK", "train adapters of this rank"},
    {"reference", "", "with a reference model"},
    {"allow", "EFFECTS", "what may change besides layout and speed: numerics, semantics, separated by commas"},
    {"max", "WHAT", "make this as large as fits: tokens, fraction, concurrency or length"},
    {"fix", "KEYS", "keys that stay as they are, separated by commas"},
    kMinProbability,
    {"keep", "N", "how many configurations to show (default 10)"},
    {"threads", "N", "threads to search with (default: the cores of this machine)"},
    {"launch", "N", "print the file that starts the N-th configuration, as the framework takes it"},
    {"job", "N", "print the job file of the N-th configuration in place of the table"},
    {"diff", "N", "print the N-th configuration as a diff of FILE in place of the table"},
}};
constexpr std::array<OptionRow, 2> kSnapshot{{
    {"top", "N", "how many rows of live blocks to show (default 12)"},
    {"replay", "", "play the recorded requests through the allocator again and compare"},
}};
constexpr std::array<OptionRow, 1> kModel{{{"parameters", "", "list every parameter tensor"}}};
constexpr std::array<OptionRow, 6> kOp{{
    {"by", "WHO", "implementation, with its release: huggingface, torch, \"liger 0.8.2\""},
    {"dtype", "FORMAT", "of inputs (default bf16)"},
    {"weights", "FORMAT", "of parameters (default: that of inputs)"},
    {"pass", "WHAT", "forward, backward or full (the default)"},
    {"retain-graph", "", "backward(retain_graph=True)"},
    {"gpu", "KIND", "kind of GPU (default H100-80GB): workspaces and some buffers depend on it"},
}};
constexpr std::array<OptionRow, 11> kServe{{
    {"engine-version", "V", "release of the engine: 0.19.1 (default: the newest that is known)"},
    {"gpu", "KIND", "kind of GPU (default H100-80GB; `oomplan gpus` lists them)"},
    {"requests", "N", "requests at once, of all replicas together, with --prompt and --response"},
    {"prompt", "N", "tokens of a prompt"},
    {"response", "N", "tokens of the longest response"},
    {"samples", "N", "responses to one prompt, which share its pages unless the command says no"},
    {"search", "", "which other settings fit on the same GPUs: whole commands, best first"},
    kMinProbability,
    {"keep", "N", "how many of them to show (default 5)"},
    {"allow", "EFFECTS", "what they may change besides layout and speed: numerics, semantics, separated by commas"},
    {"fix", "KEYS", "keys that stay as they are, separated by commas: layout, max_running_requests"},
}};
constexpr std::array<OptionRow, 1> kFacts{{{"version", "V", "only what holds for this version of the engine"}}};

constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();

constexpr std::array<Command, 16> kCommands{{
    {"estimate", "FILE [key=value ...] | SCRIPT [ARGUMENT ...] | -- COMMAND",
     "does the job fit, and what does every GPU need in every phase?",
     "FILE is a job file; `-` reads standard input. key=value overrides what stands in it.\n"
     "SCRIPT is a bash script that starts a job, COMMAND what one would type: of AReaL, verl, slime, Relax, Oumi, TRL,\n"
     "Transformers, Megatron-LM, vLLM or SGLang,\n"
     "behind srun, ray job submit, docker run, torchrun and the like (docs/launch.md). Nothing is started, and what the "
     "framework itself "
     "would\n"
     "refuse is told with its reason, all at once.\n"
     "The second line says how likely it is to fit, by the errors of such figures on real GPUs (docs/estimate.md).\n"
     "Exit status: 0 fits, 1 does not fit, 2 the input is wrong.\n\n"
     "  oomplan estimate examples/grpo.yaml\n"
     "  oomplan estimate examples/grpo.yaml actor.tokens_per_micro_batch=8k --json\n"
     "  oomplan estimate job.yaml >/dev/null && sbatch job.sh\n"
     "  oomplan estimate run.sh 8 --set MODEL=Qwen/Qwen3-8B\n"
     "  oomplan estimate run.sh '~--sequence-parallel'   # slime, Relax: without that flag and its value\n"
     "  oomplan estimate sft.yaml --gpus 8   # Oumi's, TRL's arguments\n"
     "  oomplan estimate -- trl dpo --model_name_or_path Qwen/Qwen3-8B --num_processes 8\n"
     "  oomplan estimate --gpu h100 -- torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 4 "
     "...\n",
     kEstimate, kAny, run_estimate},
    {"check", "FILE [key=value ...] | SCRIPT [ARGUMENT ...] | -- COMMAND", "the verdict alone, in one line and as exit status",
     "For what stands in front of a launch: levels first, and where they fit one replay of the allocator on the GPU's own size. "
     "No\n"
     "change is tried, and how likely it is to fit is not said: `oomplan estimate` does both.\n"
     "Exit status: 0 fits, 1 does not fit, 2 the input is wrong, 3 a defect. Of status 2 --json says the kind "
     "(docs/guide.md).\n\n"
     "  oomplan check job.yaml && sbatch job.sh\n"
     "  oomplan check run.sh && bash run.sh\n",
     kCheck, kAny, run_check},
    {"explain", "FILE [key=value ...] | SCRIPT [ARGUMENT ...] | -- COMMAND",
     "which tensors are alive at the worst moment, and what the allocator makes of it",
     "The figures of estimate, and behind them: the largest tensors with shape, number and holder, how memory rises and falls "
     "in\n"
     "an iteration, the allocator's retries, every default that was taken, and what would help.\n\n"
     "  oomplan explain examples/grpo.yaml\n"
     "  oomplan explain examples/grpo.yaml --save-snapshot predicted.pickle\n"
     "  oomplan explain examples/grpo.yaml --recorded memory_snapshot.pickle\n",
     kExplain, kAny, run_explain},
    {"advise", "FILE [key=value ...] | SCRIPT [ARGUMENT ...] | -- COMMAND",
     "what breaks first, which single changes help, what each costs, and how to write it into the file",
     "Every phase that does not fit, in the order of the run, with the tensors at fault. Then every change that could help:\n"
     "it is made in the words of FILE, read again and estimated. Most gain for the least cost first. What helps but no key of\n"
     "the framework can say is told with its reason. Exit status: 0 FILE fits as it is, 1 it does not.\n\n"
     "  oomplan advise examples/grpo.yaml actor.tokens_per_micro_batch=64k\n"
     "  oomplan advise examples/areal/grpo_7b.yaml --framework-version 1.0.4 actor.mb_spec.max_tokens_per_mb=65536\n"
     "  oomplan advise job.yaml --diff 1 | patch job.yaml\n"
     "  oomplan advise run.sh --framework-version 0.9.0 --guide\n",
     kAdvise, kAny, run_advise},
    {"search", "[FILE [key=value ...] | SCRIPT [ARGUMENT ...] | --model NAME --gpus N | -- COMMAND]",
     "configurations that fit, fastest first",
     "Changes layout, micro-batches, recompute, offload and memory fractions; nothing that changes the result of training\n"
     "unless --allow says so. When nothing fits, it tells what stops each axis. Ctrl-C ends the search with what was found, exit "
     "status 130.\n\n"
     "  oomplan search --gpus 8 --model qwen2.5-7b\n"
     "  oomplan search --gpus 16 --model qwen3-8b --algorithm ppo --response-tokens 16k --launch 1 > job.yaml\n"
     "  oomplan search examples/grpo.yaml --max tokens\n"
     "  oomplan search examples/grpo.yaml --allow numerics --keep 3 --json\n"
     "  oomplan search examples/grpo.yaml --job 1 > better.yaml\n"
     "  oomplan search examples/slime/grpo_4b.sh --fix --tensor-model-parallel-size --keep 3\n",
     kSearch, kAny, run_search},
    {"read", "FILE [key=value ...] | SCRIPT [ARGUMENT ...] | -- COMMAND",
     "the job as oomplan understood it, every value filled in",
     "Prints a job file that reads back to the same job; notes about defaults and ignored keys go to standard error.\n\n"
     "  oomplan read examples/grpo.yaml\n"
     "  oomplan read examples/grpo.yaml --json\n"
     "  oomplan read run.sh --commands\n",
     kRead, kAny, run_read},
    {"snapshot", "FILE", "what a PyTorch memory snapshot holds: peaks, live blocks, fragmentation, out of memory",
     "FILE is what torch.cuda.memory._dump_snapshot wrote (torch 2.0 to 2.13), or the same as JSON; `-` reads standard input.\n"
     "It is read as plain data: a pickle that could run code is refused.\n\n"
     "  oomplan snapshot memory_snapshot.pickle\n"
     "  oomplan snapshot memory_snapshot.pickle --top 30 --replay\n",
     kSnapshot, 1, run_snapshot},
    {"model", "NAME", "parameters, layers and KV cache of a model",
     "NAME is an alias, a hub id of the built-in list, a folder or a config.json. Nothing is downloaded.\n\n"
     "  oomplan model qwen2.5-7b\n"
     "  oomplan model ./my-model/config.json --parameters\n",
     kModel, 1, run_model},
    {"models",
     "[WORD]",
     "the models that are known by name",
     "With WORD those that have it in their id. Any other model is read from its config.json.\n\n"
     "  oomplan models qwen3\n",
     {},
     1,
     run_models},
    {"serve", "[--gpu KIND] -- vllm serve MODEL ...", "what a server would log when it starts, from its own command line",
     "Behind -- stands the command as it would be typed, variables in front included: vllm serve, or python -m\n"
     "sglang.launch_server. Nothing is started. Where it does not fit, changed commands that do are printed.\n"
     "Exit status: 0 starts and fits, 1 does not, 2 the command is wrong or has what is not supported yet.\n\n"
     "  oomplan serve --gpu h100 -- vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32k\n"
     "  oomplan serve --requests 512 --prompt 1024 --response 8192 --samples 8 -- vllm serve Qwen/Qwen3-8B\n"
     "  oomplan serve --engine-version 0.5.10 -- python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n"
     "  oomplan serve --search --keep 3 -- vllm serve Qwen/Qwen3-30B-A3B -tp 4 --max-model-len 32k\n"
     "  oomplan serve -- vllm serve Qwen/Qwen3-8B --quantization bitsandbytes --kv-cache-dtype fp8 --max-model-len 32k\n"
     "  oomplan serve -- vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 32k \\\n"
     "    --speculative-config '{\"method\": \"eagle3\", \"model\": \"HEAD/config.json\", \"num_speculative_tokens\": 3}'\n",
     kServe, kAny, run_serve},
    {"op", "[NAME size=number ...]", "what one operator takes by itself: a norm, an MLP, a loss",
     "Called again and again, as a benchmark does; gradients stay. Without NAME: the operators, who implements them, their "
     "sizes.\n\n"
     "  oomplan op\n"
     "  oomplan op swiglu tokens=16384 hidden=4096 width=14336 --by liger\n"
     "  oomplan op fused_linear_cross_entropy tokens=8192 hidden=4096 vocab=128256 --by \"liger 0.5.10\"\n",
     kOp, kAny, run_op},
    {"gpus",
     "",
     "the GPUs that oomplan knows",
     "usable is what the driver gives (cudaMemGetInfo), not the number on the label.\n\n"
     "  oomplan gpus\n",
     {},
     0,
     run_gpus},
    {"schema",
     "",
     "the JSON Schema of job files, for editors",
     "Made from the table that job files are read by (docs/job_file.md).\n\n"
     "  oomplan schema > job_file.schema.json\n",
     {},
     0,
     run_schema},
    {"facts", "[ENGINE]", "constants and defaults of the engines, each with its source",
     "What has no tensor (contexts, NCCL, graphs, workspaces) and what an engine does when the job says nothing.\n\n"
     "  oomplan facts sglang\n"
     "  oomplan facts vllm --version 0.11.0 --json\n",
     kFacts, 1, run_facts},
    {"version", "", "the version of oomplan", "  oomplan version\n", {}, 0, run_version},
    {"help", "[COMMAND]", "this overview, or the help of a command", "  oomplan help search\n", {}, 1, run_help},
}};

std::string option_lines(std::span<const OptionRow> rows) {
  std::string out;
  for (const auto& row : rows)
    out += fmt::format("  {:<18} {}\n", fmt::format("--{}{}{}", row.name, row.value.empty() ? "" : " ", row.value), row.help);
  return out;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }
std::span<const OptionRow> common_options() { return kCommon; }

std::string overview() {
  std::string out =
      "oomplan tells, before an LLM job is launched, how much memory every GPU will need.\n\nUsage: oomplan COMMAND ...\n\n";
  for (const auto& command : kCommands) out += fmt::format("  {:<9} {}\n", command.name, command.summary);
  out += "\nOptions of every command:\n" + option_lines(kCommon);
  out += "\nTry:\n  oomplan search --gpus 8 --model qwen2.5-7b\n  oomplan help estimate\n";
  return out;
}

std::string help_of(const Command& command) {
  std::string out = fmt::format("Usage: oomplan {}{}{}\n\n{}\n\n{}", command.name, command.usage.empty() ? "" : " ",
                                command.usage, command.summary, command.more);
  out += "\nOptions:\n" + option_lines(command.options) + option_lines(kCommon);
  return out;
}

int run_version(const Call& call) {
  print(call.json ? fmt::format("{{\"oomplan_version\": \"{}\"}}\n", version()) : fmt::format("oomplan {}\n", version()));
  return kFits;
}

int run_help(const Call& call) {
  if (call.positional.empty()) {
    print(overview());
    return kFits;
  }
  const auto found =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return c.name == call.positional[0]; });
  if (found == kCommands.end()) {
    std::vector<std::string> names;
    for (const auto& command : kCommands) names.emplace_back(command.name);
    throw InputError(unknown("command", call.positional[0], names));
  }
  print(help_of(*found));
  return kFits;
}

}  // namespace oomplan::cli
