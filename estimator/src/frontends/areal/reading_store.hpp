// What stays when one file is read again with other arguments: its text parsed, and the classes of its release.
//
// A store answers equal questions alike, and changes no answer. It belongs to one reader and one thread.
#pragma once
#include <map>

#include "frontends/areal/class_table.hpp"
#include "frontends/compose/document_store.hpp"

namespace oomplan::areal {

class ReadingStore {
 public:
  compose::DocumentStore& documents() { return documents_; }
  /// The reference stays good.
  ClassTable& classes(const Schema& schema) { return classes_.try_emplace(schema.release().index, schema).first->second; }

 private:
  compose::DocumentStore documents_;
  std::map<std::uint8_t, ClassTable> classes_;  ///< by release
};

}  // namespace oomplan::areal
