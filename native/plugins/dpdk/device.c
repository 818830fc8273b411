/* device.c - what `device` means: the words for EAL, and what is known of the driver. No DPDK call, so that a wrong word
 * is answered before anything is started. docs/dpdk.md has the grammar for people.
 *
 * The figures are those that were measured on the devices: af_packet counts frames of its ring by itself, and its mbufs
 * must hold one; an af_xdp chunk is a page, of which DPDK and the kernel take the first part; memif's zero-copy crashes
 * the receiver and is never used. */
#include "plugins/dpdk/dpdk.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  ETHER = 14 + 4,               /* header and a VLAN tag */
  AF_PACKET_HEAD = 80,          /* what the kernel puts before a frame in its ring, at most */
  AF_PACKET_MTU_MAX = 15936,    /* a frame of 16 KiB */
  AF_PACKET_FRAMES = 4096,
  AF_PACKET_RING = 32 << 20,    /* bytes, each way */
  AF_PACKET_FRAME_DEFAULT = 2048,
  AF_XDP_MTU_MAX = 3400,
  AF_XDP_ROOM = DPDK_DENSE - 64 - 128, /* with mempool and mbuf heads a page; 256 of it are XDP's */
  AF_XDP_FILL = 2048,           /* what the driver keeps in the fill ring */
  AF_XDP_SENDING = 4096,        /* and in the ring of sent ones, before they come back */
  MEMIF_BUFFER = 9216,
  MEMIF_MTU = 9000,
  MEMIF_RING = 1024,
  RING_MTU = 9000,
  RING_FRAMES = 1024,
  PCI_RX = 2048, PCI_TX = 1024,
  CACHE = 256,                  /* of a thread that uses a pool */
};

#define GRAMMAR                                                                                                         \
  "use af_packet:IFACE, af_xdp:IFACE, memif:SOCKET[,server|client], ring[:NAME], pcap:RX_FILE,TX_FILE, a PCI address " \
  "(0000:03:00.0), or DPDK's own words (net_...,key=value)"

static uint32_t mtu_of(const char *iface) {
  struct ifreq req;
  return dpdk_iface_ask(iface, SIOCGIFMTU, &req) ? (uint32_t)req.ifr_mtu : 1500; /* not there: preflight says so */
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Stable and short: names of devices end at 64 characters, paths do not. */
static uint32_t hash(const char *text) {
  uint32_t h = 2166136261u;
  for (; *text; text++) h = (h ^ (uint8_t)*text) * 16777619u;
  return h;
}

/* EAL separates at commas, and takes brackets and quotes for lists. */
static bool plain(const char *text) {
  for (const char *c = text; *c; c++)
    if (isspace((unsigned char)*c) || strchr(",[]\"'=", *c)) return false;
  return *text;
}

static int take_iface(const char *word, dpdk_device *d, char *error, size_t n) {
  if (!plain(word) || strlen(word) >= IF_NAMESIZE)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: \"%s\" cannot be the name of an interface: ip -br link lists them", word);
  snprintf(d->iface, sizeof d->iface, "%s", word);
  return 0;
}

static void know_af_packet(dpdk_device *d, uint32_t framesz) {
  d->kind = DPDK_AF_PACKET;
  d->ip_mtu = least(least(mtu_of(d->iface), AF_PACKET_MTU_MAX), framesz - AF_PACKET_HEAD - ETHER);
  d->frame_room = framesz;
}

static int af_packet(const char *word, dpdk_device *d, char *error, size_t n) {
  int rc = take_iface(word, d, error, n);
  if (rc) return rc;
  uint32_t mtu = least(mtu_of(d->iface), AF_PACKET_MTU_MAX), framesz = AF_PACKET_FRAME_DEFAULT;
  while (framesz < mtu + ETHER + AF_PACKET_HEAD) framesz *= 2;
  d->rx_ring = least(AF_PACKET_FRAMES, AF_PACKET_RING / framesz);
  uint32_t block = framesz < 16384 ? 16384 : framesz; /* whole pages, whatever their size */
  know_af_packet(d, framesz);
  snprintf(d->name, sizeof d->name, "net_af_packet_%s", word);
  snprintf(d->devargs, sizeof d->devargs, "%s,iface=%s,framesz=%u,blocksz=%u,framecnt=%u,qpairs=1", d->name, word,
           framesz, block, d->rx_ring);
  return 0;
}

static void know_af_xdp(dpdk_device *d) {
  d->kind = DPDK_AF_XDP;
  d->ip_mtu = least(mtu_of(d->iface), AF_XDP_MTU_MAX);
  d->rx_ring = AF_XDP_FILL;
  d->frame_room = AF_XDP_ROOM - RTE_PKTMBUF_HEADROOM;
  d->one_pool = true;
}

static int af_xdp(const char *word, dpdk_device *d, char *error, size_t n) {
  int rc = take_iface(word, d, error, n);
  if (rc) return rc;
  know_af_xdp(d);
  snprintf(d->name, sizeof d->name, "net_af_xdp_%s", word);
  snprintf(d->devargs, sizeof d->devargs, "%s,iface=%s,start_queue=0,queue_count=1", d->name, word);
  return 0;
}

static void know_memif(dpdk_device *d, uint32_t buffer) {
  d->kind = DPDK_MEMIF;
  d->ip_mtu = buffer - ETHER < MEMIF_MTU ? buffer - ETHER : MEMIF_MTU;
  d->rx_ring = MEMIF_RING;
  d->frame_room = buffer;
  d->point_to_point = d->may_shut = true;
}

static int memif(const char *word, uint32_t self, dpdk_device *d, char *error, size_t n) {
  char path[sizeof ((struct sockaddr_un *)0)->sun_path];
  size_t len = strcspn(word, ",");
  const char *role = word[len] ? word + len + 1 : self ? "client" : "server";
  if (strcmp(role, "server") && strcmp(role, "client"))
    return dpdk_refuse(error, n, -EINVAL, "dpdk: \"%s\" after the socket of memif: it is server or client", role);
  if (len >= sizeof path)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: the socket of memif has %zu characters, the kernel takes %zu: use a "
                       "shorter path", len, sizeof path - 1);
  memcpy(path, word, len);
  path[len] = 0;
  if (!plain(path))
    return dpdk_refuse(error, n, -EINVAL, "dpdk: \"%s\" cannot be the socket of memif: a path without spaces, quotes, "
                       "brackets and =", path);
  know_memif(d, MEMIF_BUFFER);
  snprintf(d->name, sizeof d->name, "net_memif_%08x_%s", hash(path), role);
  snprintf(d->devargs, sizeof d->devargs, "%s,role=%s,id=0,bsize=%u,socket=%s,socket-abstract=no", d->name, role,
           MEMIF_BUFFER, path);
  return 0;
}

static int ring(const char *word, dpdk_device *d, char *error, size_t n) {
  if (!plain(word) || strlen(word) > 10) /* it is part of names that may have 23 characters */
    return dpdk_refuse(error, n, -EINVAL, "dpdk: ring:%s: a name has at most 10 characters, without spaces", word);
  d->kind = DPDK_RING;
  d->ip_mtu = RING_MTU;
  d->rx_ring = RING_FRAMES;
  d->point_to_point = d->may_shut = true;
  snprintf(d->name, sizeof d->name, "net_ring_%s", word);
  snprintf(d->devargs, sizeof d->devargs, "%s", d->name);
  return 0;
}

static int pcap(const char *word, dpdk_device *d, char *error, size_t n) {
  char from[200], to[200];
  size_t len = strcspn(word, ",");
  if (len >= sizeof from || !word[len] || strlen(word + len + 1) >= sizeof to)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: pcap:%s: name two files of less than %zu characters, "
                       "pcap:RX_FILE,TX_FILE", word, sizeof from);
  memcpy(from, word, len);
  from[len] = 0;
  snprintf(to, sizeof to, "%s", word + len + 1);
  if (!plain(from) || !plain(to))
    return dpdk_refuse(error, n, -EINVAL, "dpdk: pcap:%s: paths without spaces, commas, quotes, brackets and =", word);
  d->kind = DPDK_PCAP;
  d->ip_mtu = RING_MTU;
  d->rx_ring = DPDK_LEASES;
  d->point_to_point = true;
  snprintf(d->name, sizeof d->name, "net_pcap_%08x", hash(word));
  int k = snprintf(d->devargs, sizeof d->devargs, "%s,rx_pcap=%s,tx_pcap=%s", d->name, from, to);
  return k < (int)sizeof d->devargs ? 0 : dpdk_refuse(error, n, -EINVAL, "dpdk: pcap:%s: use shorter paths", word);
}

/* "0000:03:00.0", "03:00.0", either with ",key=value" behind it. */
static bool is_pci(const char *spec, unsigned at[4], const char **rest) {
  int end = -1;
  at[0] = 0;
  if (sscanf(spec, "%4x:%2x:%2x.%1x%n", &at[0], &at[1], &at[2], &at[3], &end) != 4 || end < 0) {
    end = -1;
    at[0] = 0;
    if (sscanf(spec, "%2x:%2x.%1x%n", &at[1], &at[2], &at[3], &end) != 3 || end < 0) return false;
  }
  *rest = spec + end;
  return (!**rest || **rest == ',') && at[2] < 32 && at[3] < 8 && isxdigit((unsigned char)*spec);
}

static int pci(const unsigned at[4], const char *rest, dpdk_device *d, char *error, size_t n) {
  d->kind = DPDK_PCI;
  d->set_mtu = true;
  snprintf(d->name, sizeof d->name, "%04x:%02x:%02x.%x", at[0], at[1], at[2], at[3]);
  int k = snprintf(d->devargs, sizeof d->devargs, "%s%s", d->name, rest);
  if (k < (int)sizeof d->devargs) return 0;
  return dpdk_refuse(error, n, -EINVAL, "dpdk: what follows %s is too long", d->name);
}

/* The value of a key in devargs; false = it is not there. */
static bool value_of(const char *devargs, const char *key, char *out, size_t n) {
  size_t len = strlen(key);
  for (const char *p = strchr(devargs, ','); p; p = strchr(p + 1, ',')) {
    if (strncmp(p + 1, key, len) || p[1 + len] != '=') continue;
    const char *value = p + len + 2;
    int size = (int)strcspn(value, ",");
    return snprintf(out, n, "%.*s", size, value) < (int)n;
  }
  return false;
}

static uint32_t number_of(const char *devargs, const char *key, uint32_t otherwise) {
  char text[16];
  unsigned value;
  return value_of(devargs, key, text, sizeof text) && sscanf(text, "%u", &value) == 1 ? value : otherwise;
}

/* EAL's own words are passed on as they are; what is known of the driver holds all the same. */
static int raw(const char *spec, dpdk_device *d, char *error, size_t n) {
  char value[16], iface[IF_NAMESIZE];
  size_t len = strcspn(spec, ",");
  if (len >= sizeof d->name || strlen(spec) >= sizeof d->devargs || strpbrk(spec, " \t\n\"'"))
    return dpdk_refuse(error, n, -EINVAL, "dpdk: device \"%.60s...\": a name has less than %zu characters, all of it less "
                       "than %zu, and no spaces", spec, sizeof d->name, sizeof d->devargs);
  if (value_of(spec, "zero-copy", value, sizeof value) && strcmp(value, "no"))
    return dpdk_refuse(error, n, -EINVAL, "dpdk: memif with zero-copy=%s crashes the receiver: leave it out", value);
  snprintf(d->devargs, sizeof d->devargs, "%s", spec);
  snprintf(d->name, sizeof d->name, "%.*s", (int)len, spec);
  if (value_of(spec, "iface", iface, sizeof iface)) snprintf(d->iface, sizeof d->iface, "%s", iface);
  uint32_t framesz = number_of(spec, "framesz", AF_PACKET_FRAME_DEFAULT), bsize = number_of(spec, "bsize", 2048);
  if (framesz < 256 || framesz > 32768 || bsize < 256 || bsize > 32768)
    return dpdk_refuse(error, n, -EINVAL, "dpdk: device \"%s\": framesz and bsize lie between 256 and 32768", spec);
  d->kind = DPDK_OTHER;
  if (!strncmp(spec, "net_af_packet", 13)) know_af_packet(d, framesz), d->rx_ring = number_of(spec, "framecnt", 512);
  if (!strncmp(spec, "net_af_xdp", 10)) know_af_xdp(d);
  if (!strncmp(spec, "net_memif", 9)) know_memif(d, bsize);
  if (!strncmp(spec, "net_pcap", 8)) d->kind = DPDK_PCAP, d->ip_mtu = 1500, d->point_to_point = true;
  return 0;
}

/* Who may get payloads where they lie: drivers that copy them in tx_burst. Of the others,
 *   af_xdp        sends what lies behind the headers in the same mbuf, whatever the second one points to
 *   ring          hands the mbuf itself to the other end, which reads it when it likes
 *   PCI, others   read it by DMA, some until more is sent (e1000e until its ring wraps, virtio for hundreds of frames):
 *                 memory would have to be mapped for the device (rte_dev_dma_map; rte_extmem_register has room for
 *                 about 122 regions), and PROMPT needs rte_eth_tx_done_cleanup, which ena, i40e, ice, iavf, ixgbe, igb and
 *                 netvsc have, and em, virtio, vmxnet3, mlx5 and mana have not */
static tb_ref_kind ref_of(dpdk_kind kind) {
  return kind == DPDK_AF_PACKET || kind == DPDK_MEMIF || kind == DPDK_PCAP ? TB_REF_SYNC : TB_REF_NONE;
}

static int parse(const char *spec, uint32_t self, dpdk_device *out, char *error, size_t n) {
  unsigned at[4];
  const char *rest;
  if (!strncmp(spec, "af_packet:", 10)) return af_packet(spec + 10, out, error, n);
  if (!strncmp(spec, "af_xdp:", 7)) return af_xdp(spec + 7, out, error, n);
  if (!strncmp(spec, "memif:", 6)) return memif(spec + 6, self, out, error, n);
  if (!strcmp(spec, "ring")) return ring("0", out, error, n);
  if (!strncmp(spec, "ring:", 5)) return ring(spec + 5, out, error, n);
  if (!strncmp(spec, "pcap:", 5)) return pcap(spec + 5, out, error, n);
  if (!strncmp(spec, "net_", 4) && spec[4] && spec[4] != ',') return raw(spec, out, error, n);
  if (is_pci(spec, at, &rest)) return pci(at, rest, out, error, n);
  char there[300];
  dpdk_list_devices("", there, sizeof there);
  if (!*spec) return dpdk_refuse(error, n, -EINVAL, "dpdk: name a device: " GRAMMAR "; here are: %s", there);
  return dpdk_refuse(error, n, -EINVAL, "dpdk: device \"%.60s\" is none: " GRAMMAR "; here are: %s", spec, there);
}

int dpdk_device_parse(const char *spec, uint32_t self, dpdk_device *out, char *error, size_t n) {
  memset(out, 0, sizeof *out);
  int rc = parse(spec ? spec : "", self, out, error, n);
  out->ref = ref_of(out->kind);
  return rc;
}

/* Mempools are densest with 2^k - 1. */
static uint32_t pool_of(uint32_t mbufs) {
  uint32_t size = 1023;
  while (size < mbufs) size = size * 2 + 1;
  return size;
}

void dpdk_device_pools(const dpdk_device *d, uint32_t ip_mtu, dpdk_pools *out) {
  uint32_t ours = DPDK_LEASES + 2 * DPDK_RX_BURST + 2 * CACHE;
  bool nic = d->kind == DPDK_PCI || d->kind == DPDK_OTHER;
  uint32_t mtu = ip_mtu ? ip_mtu : d->ip_mtu ? d->ip_mtu : 1500;
  if (mtu > DPDK_IP_MTU_MAX) mtu = DPDK_IP_MTU_MAX;
  uint32_t frame = d->frame_room ? d->frame_room : mtu + ETHER + 4; /* two tags */
  memset(out, 0, sizeof *out);
  out->rx_desc = nic ? PCI_RX : d->rx_ring;
  out->tx_desc = nic ? PCI_TX : d->rx_ring;
  /* These copy: nothing but what is being handed over lies in an mbuf. */
  bool keeps = nic || d->kind == DPDK_RING;
  if (d->kind == DPDK_RING) ours = 0; /* what comes is of the other end's pool */
  out->rx = pool_of(ours + (nic ? PCI_RX : 0) + (d->one_pool ? AF_XDP_FILL + AF_XDP_SENDING : 0));
  out->tx = d->one_pool ? 0 : pool_of((keeps ? out->tx_desc : 0) + 2 * DPDK_TX_BURST + 2 * CACHE);
  out->tails = d->ref ? pool_of(2 * DPDK_TX_BURST + 2 * CACHE) : 0;
  out->room = RTE_PKTMBUF_HEADROOM + (frame + 63) / 64 * 64;
  uint64_t heads = sizeof(struct rte_mbuf) + 128, with_room = out->rx + out->tx;
  out->bytes = with_room * (out->room + heads) + out->tails * heads;
}
