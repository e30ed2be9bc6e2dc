// The C++ door: for every file the JSON of estimate() and of estimate_quick(), each ended by a record separator.
#include <fstream>
#include <iostream>
#include <iterator>

#include <oomplan/oomplan.hpp>

int main(int count, char** files) {
  for (int i = 1; i < count; ++i) {
    std::ifstream file(files[i]);
    oomplan::Source source;
    source.text.assign(std::istreambuf_iterator<char>(file), {});
    source.name = files[i];
    const oomplan::Job job = oomplan::read(source).job;
    std::cout << oomplan::to_json(oomplan::estimate(job), job) << '\x1e' << oomplan::to_json(oomplan::estimate_quick(job), job)
              << '\x1e';
  }
}
