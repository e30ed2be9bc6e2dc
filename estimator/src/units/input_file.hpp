// A file that a user named, read whatever it turns out to be: nothing that is no file blocks the program or ends it.
//
// Refused with words: folders, devices, pipes that nobody writes into, files without a beginning or an end (/proc/self/mem), and
// what is longer than it may be. Pipes that someone writes into are waited for, as are terminals.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

namespace oomplan {

/// Why a file is not read: `found` in place of a file, or `why`; the other one is empty.
struct FileRefused {
  std::string found, why;
};

class InputFile {
 public:
  /// "-" is standard input. Throws FileRefused.
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  /// Bytes into `room`, as many as came; 0 at the end. Throws FileRefused.
  std::size_t read(char* room, std::size_t most);
  /// The rest. Throws FileRefused when it is more than `most`; `limit` names that: "8 MiB".
  std::string all(std::size_t most, const std::string& limit);

 private:
  void wait_for_a_writer();
  int handle_ = -1;
  std::size_t size_ = 0;  ///< that the file says it has; 0 for what has none
  bool owned_ = false, pipe_ = false, waits_ = false, begun_ = false;
};

}  // namespace oomplan
