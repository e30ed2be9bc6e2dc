# What `cmake --install` puts where, by component: cpp (library and headers), c (C library and header), program. Each comes with
# what find_package(oomplan COMPONENTS ...) and pkg-config need to find it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(oomplan_package ${CMAKE_INSTALL_LIBDIR}/cmake/oomplan)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/oomplanConfig.cmake.in ${PROJECT_BINARY_DIR}/package/oomplanConfig.cmake
  INSTALL_DESTINATION ${oomplan_package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/oomplanConfigVersion.cmake COMPATIBILITY SameMinorVersion)

function(oomplan_install_package component)
  install(FILES ${PROJECT_BINARY_DIR}/package/oomplanConfig.cmake ${PROJECT_BINARY_DIR}/package/oomplanConfigVersion.cmake
    DESTINATION ${oomplan_package} COMPONENT ${component})
  install(EXPORT oomplan-${component} NAMESPACE oomplan:: DESTINATION ${oomplan_package} COMPONENT ${component})
endfunction()

# name.pc of a library, relative to itself: the prefix may be moved. `requires`: packages that whoever links it links as well.
function(oomplan_install_pc name description requires component)
  list(JOIN requires " " requires)
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" up "${up}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/library.pc.in ${PROJECT_BINARY_DIR}/package/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component})
endfunction()

install(TARGETS ${oomplan_chosen} EXPORT oomplan-cpp DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/estimator/include/oomplan DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp
  FILES_MATCHING PATTERN "*.hpp")
oomplan_install_package(cpp)
set(requires ${oomplan_linked_packages})
if(BUILD_SHARED_LIBS)
  set(requires)
endif()
oomplan_install_pc(oomplan "${PROJECT_DESCRIPTION} (C++)" "${requires}" cpp)

if(TARGET oomplan_c)
  install(TARGETS oomplan_c EXPORT oomplan-c DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c)
  install(FILES ${PROJECT_SOURCE_DIR}/estimator/include/oomplan/oomplan.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/oomplan COMPONENT c)
  oomplan_install_package(c)
  oomplan_install_pc(oomplan_c "${PROJECT_DESCRIPTION} (C)" "" c)
endif()
if(TARGET oomplan_cli)
  oomplan_install_package(program)
endif()
