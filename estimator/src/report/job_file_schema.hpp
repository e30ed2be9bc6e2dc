// The JSON Schema of job files, made from the knob table: what editors complete and check while one is written.
#pragma once
#include <string>

namespace oomplan {

/// Draft 2020-12. What depends on several keys at once is left to read().
std::string job_file_schema();

}  // namespace oomplan
