# rdma-net.sh - sourced in the guest: N (default 2) soft-RoCE devices rxe0, rxe1, ... with the addresses 10.7.0.1 and
# fd00:7::1, .2 and ::2, ... on as many veth cables to one bridge. Rank i's frames leave by v<i> and arrive through p<i>, its port of the bridge.
#
# The kernel's rxe (6.1) knows the first network namespace only, so all ends are there, and each packet still crosses two
# cables: tc netem on p<i> hits what goes to device i. MTU: 4200 carries 4096 bytes of a datagram, 1500 only 1024.
rdma_net() { # N [MTU]
  local i tries mtu=${2:-4200} gids
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter # the stricter of `all` and the interface's own counts
  { # each program that starts takes a fifth of a second there: one for all of them
    echo "link add tbsw mtu $mtu type bridge"
    echo "link set tbsw up"
    for ((i = 0; i < $1; i++)); do
      echo "link add v$i mtu $mtu type veth peer name p$i mtu $mtu"
      echo "link set p$i master tbsw up"
    done
  } | ip -batch - || return 1
  for ((i = 0; i < $1; i++)); do
    # all ends are this machine's: each must answer for its own address only, and take packets from its own kind
    echo 0 >"/proc/sys/net/ipv4/conf/v$i/rp_filter"
    echo 1 >"/proc/sys/net/ipv4/conf/v$i/accept_local"
    echo 1 >"/proc/sys/net/ipv4/conf/v$i/arp_ignore"
    echo 2 >"/proc/sys/net/ipv4/conf/v$i/arp_announce"
  done
  for ((i = 0; i < $1; i++)); do
    echo "addr add 10.7.0.$((i + 1))/24 dev v$i"
    echo "addr add fd00:7::$((i + 1))/64 dev v$i nodad"
    echo "link set v$i up"
  done | ip -batch - || return 1
  for ((i = 0; i < $1; i++)); do echo "link add rxe$i type rxe netdev v$i"; done | rdma -b - || return 1
  for ((i = 0; i < $1; i++)); do # the kernel makes GIDs a moment later
    for ((tries = 0; tries < 100; tries++)); do
      gids=$(cat /sys/class/infiniband/rxe$i/ports/1/gids/[0-7])
      [[ $gids != *fd00:* || $gids != *ffff:0a07:$(printf %04x $((i + 1)))* ]] || break
      sleep 0.1
    done
    [ "$tries" -lt 100 ] || { echo "rdma-net: rxe$i got no GID of its address" >&2; return 1; }
  done
}
