#!/bin/sh
# bench.sh FOLDER - a short run of every perf binary, to see that they work here and about how fast. Not a measurement:
# those want quiet machines, more iterations and a look at recv% (bench/README.md).
set -u
folder=$1
failed=""
say() { printf '\n# %s\n' "$*"; }
attempt() { say "$*"; timeout 60 "$@" || failed="$failed ${1##*/}"; }
pair() { # server and client on this host, each on a port that follows from our process number
  port=$((20000 + $$ % 20000))
  say "$* (server and client)"
  timeout 60 "$@" -p $port >/dev/null 2>&1 &
  server=$!
  timeout 60 "$@" -p $port 127.0.0.1 || failed="$failed ${1##*/}"
  wait $server || failed="$failed ${1##*/}"
}

attempt "$folder/timer_loop" -N 2 -n 200
attempt "$folder/reduce_bench" 1048576 20
attempt "$folder/compute_bench" 4194304 20
attempt "$folder/link_bench" -s 0.5 -b 8,64 1472 8960
attempt "$folder/all_reduce_perf" --ranks 2 -b 64K -e 4M -f 8 -n 10
pair "$folder/pingpong_lat" -n 200
pair "$folder/stream_bw" -n 500
[ -z "$failed" ] || { printf '\nfailed:%s\n' "$failed" >&2; exit 1; }
