# Sources of dependencies that are fetched when they are not installed. Commits, because a tag can move.
set(OOMPLAN_JSON_REPOSITORY https://github.com/nlohmann/json.git)
set(OOMPLAN_JSON_TAG 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # v3.11.3
set(OOMPLAN_FMT_REPOSITORY https://github.com/fmtlib/fmt.git)
set(OOMPLAN_FMT_TAG 0c9fce2ffefecfdce794e1859584e25877b7b592)  # 11.0.2
set(OOMPLAN_YAML_REPOSITORY https://github.com/jbeder/yaml-cpp.git)
set(OOMPLAN_YAML_TAG 56e3bb550c91fd7005566f19c079cb7a503223cf)  # yaml-cpp-0.9.0
