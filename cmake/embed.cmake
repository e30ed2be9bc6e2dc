# Compiles every .json file below a folder into one C++ source: a table of {path, text}.
function(oomplan_embed folder output)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*.json)
  list(SORT files)
  list(TRANSFORM files PREPEND "${folder}/" OUTPUT_VARIABLE inputs)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DOUTPUT=${output} -P ${PROJECT_SOURCE_DIR}/cmake/embed_script.cmake
    DEPENDS ${inputs} ${PROJECT_SOURCE_DIR}/cmake/embed_script.cmake
    COMMENT "Embedding models/" VERBATIM)
endfunction()
