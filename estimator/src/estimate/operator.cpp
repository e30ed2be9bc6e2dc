#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "catalog/catalog.hpp"
#include "catalog/facts.hpp"
#include "catalog/gpus.hpp"
#include "layers/liger_code.hpp"
#include "layers/operators.hpp"
#include "program/replay.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

[[noreturn]] void refuse(std::string path, std::string found, std::string expected, std::string nearest = {},
                         std::string why = {}) {
  throw InputError(
      Problem{{"", 0, 0, std::move(path)}, std::move(found), std::move(expected), std::move(nearest), std::move(why)});
}

template <class Rows, class NameOf>
std::vector<std::string> names_of(const Rows& rows, NameOf&& name_of) {
  std::vector<std::string> out;
  for (const auto& row : rows) out.emplace_back(name_of(row));
  return out;
}

/// The call with everything filled in that it leaves open.
OperatorCall checked(OperatorCall call) {
  // two sizes to a tensor, a few dozen tensors: all below 2^60 bytes
  constexpr std::int64_t kMostOfASize = std::int64_t{1} << 24, kMostModules = 64, kMostParts = 4096;
  const auto& rows = operator_rows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const OperatorRow& r) { return r.name == call.name; });
  const auto name_of = [](const auto& r) { return r.name; };
  if (row == rows.end()) {
    const auto names = names_of(rows, name_of);
    refuse("operator", "'" + call.name + "'", list_of(names), nearest(call.name, names), "not supported yet: other operators");
  }
  if (call.by.empty()) call.by = row->by.front();
  const std::string_view by = without_release(call.by);
  if (std::find(row->by.begin(), row->by.end(), by) == row->by.end()) {
    const auto names = names_of(row->by, [](std::string_view text) { return text; });
    refuse("by", "'" + call.by + "'", list_of(names), nearest(by, names));
  }
  if (by.size() < call.by.size() && (by != "liger" || !liger_code(std::string_view(call.by).substr(by.size() + 1))))
    refuse("by", "'" + call.by + "'", "liger with a release from 0.2.1 on, such as liger 0.8.2");
  const auto sizes = names_of(row->sizes, name_of);
  for (const auto& [size, value] : call.sizes) {
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end())
      refuse("sizes." + size, "a size", list_of(sizes), nearest(size, sizes));
    if (value < 0 || value > kMostOfASize)
      refuse("sizes." + size, fmt::format("{}", value), fmt::format("0 to {}", kMostOfASize));
  }
  for (const auto& size : row->sizes) {
    if (size.otherwise == 0 && !call.sizes.contains(size.name))
      refuse("sizes." + std::string(size.name), "nothing", fmt::format("{}", size.help));
    call.sizes.emplace(std::string(size.name), size.otherwise);
    if (size.otherwise == 0 && call.sizes.find(size.name)->second == 0)
      refuse("sizes." + std::string(size.name), "0", "1 or more");
  }
  const auto size = [&](std::string_view which) { return call.sizes.contains(which) ? call.sizes.find(which)->second : 1; };
  if (size("shards") < 1 || size("shards") > kMostParts)
    refuse("sizes.shards", fmt::format("{}", size("shards")), fmt::format("1 to {}", kMostParts));
  if (call.sizes.contains("hidden") && size("vocab") / size("hidden") > kMostParts)
    refuse("sizes.vocab", fmt::format("{}", size("vocab")), fmt::format("at most {} times the hidden size", kMostParts));
  if (call.modules < 1 || call.modules > kMostModules)
    refuse("modules", fmt::format("{}", call.modules), fmt::format("1 to {}", kMostModules));
  return call;
}

/// CUDA C++ programming guide, technical specifications per compute capability: resident threads of a multiprocessor.
std::int64_t threads_of_a_multiprocessor(std::string_view sm) {
  if (sm == "sm75") return 1024;
  return sm == "sm86" || sm == "sm87" || sm == "sm89" || sm == "sm120" ? 1536 : 2048;
}

/// The run as a program: what is there before, then the calls.
class Writer {
 public:
  Writer(const OperatorRun& run, const OperatorCall& call) : run_(run), call_(call) {}

  Program write(Bytes workspace) {
    writer_.mark("set-up");
    for (const bool there : {run_.multiplies_forward, run_.multiplies_backward})
      if (there) alone("cublas_workspace", workspace, Category::workspace);
    for (const Leaf& leaf : run_.eager.leaves)
      for (std::int64_t i = 0; i < call_.modules; ++i)
        alone(leaf.name, elements(leaf.shape).coefficient * row(leaf.dtype).bits / 8, Category::weights);
    events(0, run_.first_call);
    writer_.mark("first call");
    events(run_.first_call, run_.later_call);
    resident_ = level_;
    writer_.mark("later calls");
    events(run_.later_call, run_.end);
    return writer_.take();
  }
  Bytes resident() const { return resident_; }

 private:
  void alone(const std::string& name, Bytes bytes, Category category) {
    Site site;
    site.name = name;
    site.bytes = bytes;
    site.category = category;
    site.holder = Holder::resident;
    writer_.alloc(writer_.site(std::move(site)));
    level_ += bytes;
  }
  SiteRef site_of(const Storage& storage) {
    Site site;
    site.name = storage.name;
    for (const Dim& d : storage.shape) site.shape.push_back(d.coefficient);
    site.dtype = storage.dtype;
    site.bytes = elements(storage.shape).coefficient * row(storage.dtype).bits / 8;
    site.category = storage.category;
    site.holder = storage.saved ? Holder::saved_for_backward : Holder::local;
    return writer_.site(std::move(site));
  }
  void release(int storage) {
    const SiteRef& site = sites_[static_cast<std::size_t>(storage)];
    writer_.free(site);
    level_ -= site.bytes;
  }
  void events(std::size_t from, std::size_t to) {
    const Eager& g = run_.eager;
    sites_.resize(g.storages.size());
    for (std::size_t i = from; i < to; ++i) {
      const EagerEvent& e = g.events[i];
      if (e.kind == EagerEvent::Kind::alloc) {
        SiteRef& site = sites_[static_cast<std::size_t>(e.storage)];
        site = site_of(g.storages[static_cast<std::size_t>(e.storage)]);
        writer_.alloc(site);
        level_ += site.bytes;
      } else if (e.kind == EagerEvent::Kind::free) {
        release(e.storage);
      } else if (!gradients_.insert(e.leaf).second) {
        release(e.storage);  // added into the one that is there
      }
    }
  }

  const OperatorRun& run_;
  const OperatorCall& call_;
  ProgramWriter writer_;
  std::vector<SiteRef> sites_;
  std::set<int> gradients_;  ///< leaves that have one
  Bytes level_ = 0, resident_ = 0;
};

}  // namespace

std::string_view name(OperatorPass pass) {
  return pass == OperatorPass::forward ? "forward" : pass == OperatorPass::backward ? "backward" : "full";
}

OperatorAnswer ask(const OperatorCall& asked, const Catalog& catalog) {
  const OperatorCall call = checked(asked);
  const Gpu& gpu = catalog.gpu(call.gpu);
  OperatorRun run;
  run.eager.resident_threads = gpu.sms * threads_of_a_multiprocessor(gpu.sm);
  run_operator(run, call, gpu.sms);
  const FactQuery query{"", gpu.sm, {}};
  const auto workspace = static_cast<Bytes>(catalog.facts().find("torch", "cublas_workspace_bytes", query).value);
  Writer writer(run, call);
  const Program program = writer.write(workspace);
  OperatorAnswer out;
  out.resident = writer.resident();
  const Replay replayed = replay(program, AllocatorSettings{});
  for (const PhaseReplay& phase : replayed.phases)
    if (phase.phase == "later calls") out.allocated = phase.allocated_peak;
  out.reserved = replayed.reserved_peak;
  out.live = live_in_phase(program, "later calls");
  return out;
}

}  // namespace oomplan
