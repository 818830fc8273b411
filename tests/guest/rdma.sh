#!/bin/bash
# rdma.sh N MTU COMMAND... - in the guest: N soft-RoCE devices (rdma-net.sh), then the command.
. "$(dirname "${BASH_SOURCE[0]}")/rdma-net.sh"
rdma_net "$1" "$2" || exit 1
shift 2
exec "$@"
