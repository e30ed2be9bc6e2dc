// Golden memory values of Megatron-LM's functional tests (tests/data/golden_megatron.jsonl, made by
// benchmarks/oracle/compact_golden.py): what torch had allocated on the last rank, measured on H100 and GB200.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "estimate/figures.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

/// Both cuBLAS workspaces of PyTorch on Hopper and Blackwell, or with CUBLAS_WORKSPACE_CONFIG=:4096:8.
constexpr Bytes kWorkspaces = 64 * kMiB;

TEST_CASE("megatron: golden values of its own tests") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/golden_megatron.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst_peak = 0, worst_resident = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["id"].get<std::string>());
    const TrainingCase made = read_training_case(row["job"].dump(), row["fields"].dump(), Catalog::builtin());
    const TrainingFigures f = training_figures(made);
    const auto error = [](Bytes got, const Json& want) { return 100 * (static_cast<double>(got) / want.get<double>() - 1); };
    const Bytes added = kWorkspaces + row["added"].get<Bytes>();
    const double peak = error(f.peak + added, row["peak"]);
    const double resident = error(f.optimizer + added + row["left"].get<Bytes>(), row["resident"]);
    CHECK(std::abs(peak) < 3);  // routing is not even, and blocks are larger than what is asked for
    CHECK(std::abs(resident) < 1.2);
    worst_peak = std::max(worst_peak, std::abs(peak));
    worst_resident = std::max(worst_resident, std::abs(resident));
  }
  CHECK(rows >= 60);
  MESSAGE(rows << " tests, worst peak " << worst_peak << " %, worst resident " << worst_resident << " %");
}

}  // namespace
