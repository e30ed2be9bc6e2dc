// Does a job fit? Ends with 0 when it does, 1 when it does not, 2 when the input is wrong.
#include <fstream>
#include <iostream>
#include <iterator>

#include <oomplan/oomplan.hpp>

int main(int count, char** words) {
  std::ifstream file(count > 1 ? words[1] : "");
  if (!file) {
    std::cerr << "usage: check JOB_FILE [KEY=VALUE...]\n";
    return 2;
  }
  oomplan::Source source;
  source.text.assign(std::istreambuf_iterator<char>(file), {});
  source.name = words[1];
  source.overrides.assign(words + 2, words + count);
  try {
    const oomplan::Reading reading = oomplan::read(source);
    const oomplan::Estimate answer = oomplan::estimate(reading.job);
    std::cout << oomplan::to_text(answer, reading.job);
    return answer.fits() ? 0 : 1;
  } catch (const oomplan::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
