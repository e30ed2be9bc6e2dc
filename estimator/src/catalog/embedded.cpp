#include "catalog/embedded.hpp"

#include <oomplan/units/errors.hpp>

namespace oomplan {

std::string embedded_text(std::string_view path) {
  for (const EmbeddedFile* file = kEmbeddedFiles; file->path != nullptr; ++file) {
    if (path != file->path) continue;
    std::string text;
    for (const char* const* piece = file->pieces; *piece != nullptr; ++piece) text += *piece;
    return text;
  }
  throw Defect("models/" + std::string(path) + " is not compiled in");
}

}  // namespace oomplan
