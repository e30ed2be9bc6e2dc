// A framework's own guide for its users, point by point, judged for one job.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan OOMPLAN_PUBLIC {

struct GuidePoint {
  std::string section;                 ///< of the guide: "3. batch sizes"
  std::string text;                    ///< what it says
  std::vector<std::string> overrides;  ///< what that is for this job; empty: nothing, and `why` says why
  std::string why;                     ///< what it costs, or why there is nothing to change
  // of a second estimate
  Bytes gain = 0;        ///< of the fullest GPU at its worst moment; negative: more is needed
  std::string phase;     ///< that needs so much less by it, of all the most; "" none does
  Bytes phase_gain = 0;  ///< on the GPU that it fills most
  bool fits = false;
};
struct Guide {
  Reading reading;
  Estimate estimate;   ///< of the job as it is
  std::string source;  ///< the guide's page and release
  std::vector<GuidePoint> points;
};

/// Every point is an estimate of its own. Throws InputError: the job is wrong, or its framework has no guide that is known.
Guide guide(const Source&, const Catalog* = nullptr);
std::string to_text(const Guide&, const TextStyle& = {});
std::string to_json(const Guide&);

}  // namespace oomplan
