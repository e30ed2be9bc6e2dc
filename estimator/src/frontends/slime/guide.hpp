// What the guides of slime's family tell users who run out of memory, as flags of one job.
#pragma once
#include <string>
#include <vector>

#include <oomplan/guide.hpp>

#include "frontends/slime/meaning.hpp"

namespace oomplan::slime {

inline constexpr std::string_view kGuide = "THUDM/slime docs/en/get_started/qa.md and usage.md, 624b824a";

/// Every point that one of them has. A framework's guide puts them in its own order, under its own headings.
class GuideWriter {
 public:
  GuideWriter(const SlimeText& text, const SlimeMeaning& m) : t_(text), m_(m) {}

  void recompute(std::string section);
  void tokens(std::string section);
  void tokens_of_log_probs(std::string section);
  void dynamic_batches(std::string section);
  void fixed_batches(std::string section);
  void optimizer_on_host(std::string section);
  void loss(std::string section);
  void chunks_of_log_probs(std::string section);
  void update_buffer(std::string section);
  void weights_on_host(std::string section);
  void margin(std::string section);
  void server_fraction(std::string section);
  void stages(std::string section);
  void context(std::string section);

  std::vector<GuidePoint> take() { return std::move(out_); }

 private:
  void point(std::string section, std::string text, std::vector<std::string> flags, std::string why);
  /// False: the release has no such flag, which is told.
  bool has(const std::string& section, const std::string& text, const char* name);
  std::int64_t longest() const;

  const SlimeText& t_;
  const SlimeMeaning& m_;
  std::vector<GuidePoint> out_;
};

/// slime's own: two pages that name four flags.
std::vector<GuidePoint> guide_points(const SlimeText&, const SlimeMeaning&);

}  // namespace oomplan::slime
