/* Does a job fit? Prints JSON; ends with 0 when it does, 1 when it does not, 2 when the input is wrong. */
#include <stdio.h>

#include <oomplan/oomplan.h>

int main(int count, char** words) {
  static char job[1 << 20];
  FILE* file = fopen(count > 1 ? words[1] : "", "rb");
  if (file == NULL) {
    fputs("usage: check JOB_FILE [KEY=VALUE]\n", stderr);
    return 2;
  }
  const size_t n = fread(job, 1, sizeof job, file);
  fclose(file);

  oomplan_catalog* catalog = oomplan_open(NULL, NULL);
  oomplan_text* answer = NULL;
  const int status = oomplan_estimate(catalog, job, n, count > 2 ? words[2] : NULL, &answer);
  puts(oomplan_text_data(answer, NULL));
  oomplan_text_free(answer);
  oomplan_close(catalog);
  return status;
}
