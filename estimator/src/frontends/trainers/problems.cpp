#include "frontends/trainers/problems.hpp"

#include <algorithm>
#include <utility>

namespace oomplan::trainers {
namespace {

bool is_told(const std::vector<Problem>& said, const Problem& p) {
  return !p.place.path.empty() &&
         std::any_of(said.begin(), said.end(), [&](const Problem& q) { return q.place.path == p.place.path; });
}

}  // namespace

void add_untold(std::vector<Problem>& said, std::vector<Problem> more) {
  for (Problem& p : more)
    if (!is_told(said, p)) said.push_back(std::move(p));
}

void put_in_front(const std::vector<Problem>& said, NativeText& job, std::vector<Note>& notes, const std::string& file) {
  std::erase_if(job.problems, [&](const Problem& p) { return is_told(said, p); });
  job.problems.insert(job.problems.begin(), said.begin(), said.end());
  for (Note& n : notes)
    if (n.place.file.empty()) n.place.file = file;
  for (Problem& p : job.problems)
    if (p.place.file.empty()) p.place.file = file;
}

}  // namespace oomplan::trainers
