# rdma-net.sh - sourced in the guest: N (default 2) soft-RoCE devices rxe0, rxe1, ... with the addresses 10.7.0.1 and
# fd00:7::1, .2 and ::2, ... on as many veth cables to one bridge. Rank i's frames leave by v<i> and arrive through p<i>, its port of the bridge.
#
# The kernel's rxe (6.1) knows the first network namespace only, so all ends are there, and each packet still crosses two
# cables: tc netem on p<i> hits what goes to device i. MTU: 4200 carries 4096 bytes of a datagram, 1500 only 1024.
rdma_net() { # N [MTU]
  local i tries mtu=${2:-4200}
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter # the stricter of `all` and the interface's own counts
  ip link add tbsw type bridge && ip link set tbsw mtu "$mtu" up || return 1
  for ((i = 0; i < $1; i++)); do
    ip link add "v$i" mtu "$mtu" type veth peer name "p$i" mtu "$mtu" || return 1
    ip link set "p$i" master tbsw up
    # all ends are this machine's: each must answer for its own address only, and take packets from its own kind
    echo 0 >"/proc/sys/net/ipv4/conf/v$i/rp_filter"
    echo 1 >"/proc/sys/net/ipv4/conf/v$i/accept_local"
    echo 1 >"/proc/sys/net/ipv4/conf/v$i/arp_ignore"
    echo 2 >"/proc/sys/net/ipv4/conf/v$i/arp_announce"
    ip addr add "10.7.0.$((i + 1))/24" dev "v$i"
    ip addr add "fd00:7::$((i + 1))/64" dev "v$i" nodad
    ip link set "v$i" up
    rdma link add "rxe$i" type rxe netdev "v$i" || return 1
  done
  for ((i = 0; i < $1; i++)); do # the kernel makes GIDs a moment later
    for ((tries = 0; tries < 100; tries++)); do
      [ "$(cat /sys/class/infiniband/rxe$i/ports/1/gids/[0-7] | grep -cE "^fd00:|ffff:0a07:$(printf %04x $((i + 1)))")" != 2 ] || break
      sleep 0.1
    done
    [ "$tries" -lt 100 ] || { echo "rdma-net: rxe$i got no GID of its address" >&2; return 1; }
  done
}
