# How the libraries are used and linked.

# What whoever links `target` gets: the public headers and their language.
function(oomplan_usage target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/estimator/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
endfunction()

# Links the dependencies that are more than headers. Installed ones a static library leaves to its users (oomplanConfig.cmake and
# oomplan.pc find them); the objects of fetched ones go into it.
set(oomplan_linked ${OOMPLAN_YAML_TARGET})
set(oomplan_linked_packages)  # that users of an installed static library need
if(NOT OOMPLAN_FMT_HEADER_ONLY)
  list(APPEND oomplan_linked ${OOMPLAN_FMT_TARGET})
endif()
foreach(dependency IN LISTS oomplan_linked)
  get_target_property(imported ${dependency} IMPORTED)
  if(imported)
    string(REGEX REPLACE "::.*" "" package ${dependency})
    list(APPEND oomplan_linked_packages ${package})
  endif()
endforeach()
function(oomplan_link target)
  get_target_property(kind ${target} TYPE)
  foreach(dependency IN LISTS oomplan_linked)
    get_target_property(imported ${dependency} IMPORTED)
    if(imported)
      target_link_libraries(${target} PRIVATE ${dependency})
      continue()
    endif()
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${dependency}>)
    if(OOMPLAN_INSTALL AND kind STREQUAL "STATIC_LIBRARY")
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${dependency}>)
    endif()
  endforeach()
endfunction()

# What a shared library shows, by a version script.
function(oomplan_exports target script)
  if(UNIX AND NOT APPLE)
    target_link_options(${target} PRIVATE LINKER:--version-script=${script})
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${script})
  endif()
endfunction()
