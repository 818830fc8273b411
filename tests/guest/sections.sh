#!/bin/bash
# sections.sh NAME COMMAND [NAME COMMAND]... - in the guest: one after another, in one boot, which takes longer than most.
# Each COMMAND is a line of shell and has 240 s; its two streams come out as one, between "=== NAME" and
# "=== NAME: STATUS", whatever became of those before.
while [ $# -gt 1 ]; do
  printf '=== %s\n' "$1"
  timeout -k 5 240 bash -c "$2" 2>&1
  printf '\n=== %s: %s\n' "$1" $?
  shift 2
done
