// The files of models/, compiled in (cmake/embed.cmake writes the table).
#pragma once
#include <string>
#include <string_view>

namespace oomplan {

struct EmbeddedFile {
  const char* path;           ///< relative to models/
  const char* const* pieces;  ///< the text, cut; ends with nullptr
};
/// Ends with a row of null pointers.
extern const EmbeddedFile kEmbeddedFiles[];

/// The text of models/<path>. Throws Defect when there is no such file.
std::string embedded_text(std::string_view path);

}  // namespace oomplan
