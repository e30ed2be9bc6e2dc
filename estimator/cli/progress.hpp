// Patience: a line on standard error while something takes longer than a second, and Ctrl-C as a wish to stop.
#pragma once
#include <stop_token>
#include <string>
#include <thread>

namespace oomplan::cli {

/// While one lives, a terminal sees "searching, 3 s (Ctrl-C shows what was found so far)" from the second second on, and the
/// first Ctrl-C only asks token() to stop; a second one ends the program. One at a time.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::jthread watcher_;
};

}  // namespace oomplan::cli
