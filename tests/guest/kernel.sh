# kernel.sh - sourced by run-in-guest.sh: Debian's generic kernel, unpacked once into $cache. The guest needs vmlinux,
# initramfs.cpio, lib/modules and kver there.

# What the initramfs loads by itself, and what is kept of the package's 400 MB of modules.
boot_modules='virtio_pci virtio_console 9pnet_virtio 9p overlay'
keep=(drivers/infiniband/core drivers/infiniband/sw drivers/virtio drivers/vfio drivers/iommu
      drivers/net/{veth,dummy,tun,tap,ifb,macvlan,virtio_net,net_failover}.ko drivers/net/ethernet/intel/{e1000,e1000e,igb}
      drivers/char/virtio_console.ko drivers/char/hw_random drivers/i2c/algos drivers/dca drivers/ptp net
      fs/{9p,fscache,netfs,overlayfs,configfs} lib crypto arch/x86/crypto virt)

setup() {
  [ "$(uname -m)" = x86_64 ] || die "the guest runs this machine's own programs under qemu-system-x86_64, and this is $(uname -m)"
  sh "$here/../../scripts/need.sh" guest >&2 || die "the guest cannot be set up"
  [ ! -e "$cache/ready" ] || return 0
  mkdir -p "$cache" || die "cannot create $cache"
  (
    flock 9
    [ -e "$cache/ready" ] || unpack_kernel
  ) 9>"$cache/lock" || exit 125
}

unpack_kernel() {
  local name deb part kver patterns=('./boot/vmlinuz-*' './lib/modules/*/modules.*')
  [ -n "$(apt-cache depends linux-image-amd64 2>/dev/null)" ] || apt-get -qq update >&2 </dev/null ||
    die "apt-get update failed, and apt knows no linux-image-amd64 yet: run \`apt-get update\` as root"
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" {print $2; exit}')
  [ -n "$name" ] || die "apt has no linux-image-amd64, whose kernel the guest boots: it takes Debian's package lists"
  rm -rf "$cache"/new.*
  tmp=$(mktemp -d "$cache/new.XXXXXX") || die "cannot write to $cache"
  chmod 755 "$tmp"
  (cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$name" >&2 </dev/null) ||
    { (apt-get -qq update && cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download "$name") >&2 </dev/null; } ||
    die "could not download $name: see apt's message above"
  deb=$(echo "$tmp"/*.deb)
  for part in "${keep[@]}"; do patterns+=("./lib/modules/*/kernel/$part" "./lib/modules/*/kernel/$part.xz"); done
  # tar says of patterns that match nothing (a .ko beside a .ko.xz) that it failed: what is missing shows below
  dpkg-deb --fsys-tarfile "$deb" | tar -C "$tmp" -x --wildcards "${patterns[@]}" 2>/dev/null
  rm -f "$deb"
  kver=$(ls "$tmp/lib/modules") && [ -s "$tmp/boot/vmlinuz-$kver" ] || die "could not unpack $name"
  depmod -b "$tmp" "$kver" || die "depmod failed on $name"
  uncompress_kernel "$tmp/boot/vmlinuz-$kver" "$tmp/vmlinux"
  make_initramfs
  rm -rf "$tmp/boot" "$cache/kernel"
  echo "$name" >"$tmp/package"; echo "$kver" >"$tmp/kver"
  mv "$tmp" "$cache/kernel" && touch "$cache/ready" || die "cannot write to $cache"
}

# Emulated, the kernel's own uncompressing takes four seconds a boot: do it once, here. Its boot header has setup_sects
# at 0x1f1, the payload's offset and length at 0x248. What is packed in another way boots too, only later.
uncompress_kernel() { # FROM TO
  local sect off len unpack=false
  sect=$(od -An -tu1 -j $((0x1f1)) -N1 "$1"); [ "$sect" -ne 0 ] || sect=4
  read -r off len < <(od -An -tu4 -j $((0x248)) -N8 "$1")
  tail -c +$(((sect + 1) * 512 + off + 1)) "$1" | head -c "$len" >"$2.packed"
  case $(od -An -tx1 -N4 "$2.packed" | tr -d ' \n') in
    fd377a58) unpack='xz -dc --single-stream' ;;
    28b52ffd) unpack='zstd -dcq' ;;
    1f8b*) unpack='gzip -dc' ;;
  esac
  $unpack <"$2.packed" >"$2" 2>/dev/null # status: four bytes of length follow what is packed
  rm -f "$2.packed"
  [ "$(od -An -tx1 -N4 "$2" | tr -d ' \n')" = 7f454c46 ] || cp "$1" "$2"
}

make_initramfs() {
  local ird=$tmp/initramfs module file plain list=' '
  mkdir -p "$ird"/{bin,m,proc,sys,dev,lower,rw,new}
  cp "$(command -v busybox)" "$ird/bin/busybox"
  for module in $boot_modules; do
    while read -r file; do
      plain=$(basename "$file" .xz)
      case $list in *" $plain "*) continue ;; esac
      list+="$plain "
      case $file in *.xz) xz -dc "$file" >"$ird/m/$plain" ;; *) cp "$file" "$ird/m/$plain" ;; esac
    done < <(modprobe -d "$tmp" -S "$kver" --show-depends "$module" | awk '$1 == "insmod" {print $2}')
  done
  # shellcheck disable=SC2086 # a list of words
  printf '%s\n' $list >"$ird/m/order"
  install -m 755 "$here/init.sh" "$ird/init"
  (cd "$ird" && find . | busybox cpio -o -H newc 2>/dev/null) >"$tmp/initramfs.cpio" || die "cpio failed"
  rm -rf "$ird"
}
