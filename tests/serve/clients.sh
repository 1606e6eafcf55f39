#!/bin/sh
# clients.sh PYTHON ARGUMENTS: runs them; without that Python the test is skipped.
if [ ! -x "$1" ]; then
  echo "there is no $1: tools/setup/clients.sh makes it"
  exit 77
fi
exec "$@"
