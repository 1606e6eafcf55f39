# parity_judge: the oracle, the makers of problems and their judges, for the tests here and in tests/faults.
if(NOT TARGET parity_judge)
  set(judge_sources compare.c cover.c guard.c isolate.c oracle.c oracle_number.c problem.c problem_data.c problem_door.c problem_run.c problem_select.c problem_shape.c
    roster.c write_case.c write_judge.c write_shape.c)
  list(TRANSFORM judge_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
  add_library(parity_judge STATIC EXCLUDE_FROM_ALL ${judge_sources})
  octavo_defaults(parity_judge)
  target_include_directories(parity_judge PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(parity_judge PUBLIC octavo_static)
endif()
