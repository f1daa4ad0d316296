// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Redirects ACKs that leave over the primary link to a second one (tc egress, TCX). Every other packet leaves unchanged.
//
// 1. A pure ACK has no payload, no flag but ACK, and no options but timestamps. An ACK with SACK blocks stays on the
//    primary link, and so do all of its flow for a while, because a hole is open. An ACK that reports a duplicate soon
//    after the switch suggests that ACKs do not arrive over the second link: then the while doubles each time.
// 2. A flow is busy when it has acknowledged THRESHOLD segments in a tenth of a second (the threshold of
//    Super-aggregation counts segments in flight, which are not visible here).
// 3. ACKs beyond the second link's rate stay on the primary link (a token bucket, as time), and so do all ACKs of a flow
//    of which it could carry only few: its sender would get reports over two paths, both of them incomplete.
// 4. The user-space process disables it while the second link is down, and for address families that this link does not
//    have. It is removed with that process.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define DECLARED(name, number) int (*name)[number]

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
// Exact to a few milliseconds, which is enough here.
static __u64 (*const now_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;
static long (*const pull_data)(void *skb, __u32 length) = (void *)BPF_FUNC_skb_pull_data;
static long (*const redirect)(__u32 index, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*const redirect_neigh)(__u32 index, struct bpf_redir_neigh *next, int length, __u64 flags) =
	(void *)BPF_FUNC_redirect_neigh;

// Settings of the user-space process, read for each packet.
struct settings {
	__u32 on;           // address families: 1 IPv4, 2 IPv6
	__u32 second;       // index of the device
	__u32 header;       // bytes before the IP header on the primary device
	__u32 has_hardware; // the second device has neighbors
	__u64 ns_per_kib;   // the second link's rate
	__u64 burst_ns;     // the burst that it allows
	__u64 most;         // bytes in a tenth of a second; of faster flows the second link can carry too few ACKs
	__u32 router[4];    // of IPv6, if the second device has neighbors
};

// Each processor has its own.
struct counters {
	__u64 seen;    // pure ACKs
	__u64 steered; // redirected
	__u64 holes;   // with SACK blocks, or of a flow that had them
	__u64 full;    // the second link was at its rate
};

// Both addresses and both ports, in the order of the packet.
struct flow4 {
	__u32 words[3];
};

struct flow6 {
	__u32 words[9];
};

struct state {
	__u64 hole;    // when the last SACK block left
	__u64 led;     // when the last one was redirected
	__u64 twice;   // when a duplicate was reported soon after that
	__u64 window;  // when the running tenth of a second began
	__u32 first;   // the ACK number at its beginning
	__u32 bytes;   // what the previous one has acknowledged
	__u32 strikes; // how often that was so
};

struct {
	DECLARED(type, BPF_MAP_TYPE_ARRAY);
	DECLARED(max_entries, 1);
	__u32 *key;
	struct settings *value;
} SETTINGS SEC(".maps");

struct {
	DECLARED(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	DECLARED(max_entries, 1);
	__u32 *key;
	struct counters *value;
} COUNTERS SEC(".maps");

// The token bucket: when what was redirected will have been sent.
struct {
	DECLARED(type, BPF_MAP_TYPE_ARRAY);
	DECLARED(max_entries, 1);
	__u32 *key;
	__u64 *value;
} BUCKET SEC(".maps");

// Two, because a short key is found sooner.
struct {
	DECLARED(type, BPF_MAP_TYPE_LRU_HASH);
	DECLARED(max_entries, 4096);
	struct flow4 *key;
	struct state *value;
} FLOWS4 SEC(".maps");

struct {
	DECLARED(type, BPF_MAP_TYPE_LRU_HASH);
	DECLARED(max_entries, 4096);
	struct flow6 *key;
	struct state *value;
} FLOWS6 SEC(".maps");

// The next program, or out (`TCX_NEXT`, which older headers do not have).
#define TCX_NEXT -1

#define TENTH 100000000ull
// Our choice: longer than the round trips for which a hole stays open on access links.
#define CALM 1000000000ull
// Our choice: timeouts come within it.
#define SOON (2 * CALM)
// Our choice: seventeen minutes.
#define STRIKES 10
// §4.2: 20 segments, of 1448 bytes.
#define THRESHOLD (20 * 1448)

#define ETH_IPV4 0x0800
#define ETH_IPV6 0x86dd
#define AF_INET6 10
#define TCP 6
#define ACK 0x10
// All others of FIN SYN RST PSH ACK URG.
#define OTHERS 0x2f

INLINE __u16 swapped(__u16 n) { return __builtin_bswap16(n); }

SEC("classifier")
int steer(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *settings = map_lookup(&SETTINGS, &zero);
	struct counters *counters = map_lookup(&COUNTERS, &zero);
	__u64 *bucket = map_lookup(&BUCKET, &zero);
	if (!settings || !counters || !bucket || !settings->on)
		return TCX_NEXT;
	__u32 at = settings->header;
	if (at > 64 || skb->len > at + 120)
		return TCX_NEXT;

	// Usually it is linear already.
	if (skb->data_end - skb->data < skb->len && pull_data(skb, skb->len) < 0)
		return TCX_NEXT;
	const __u8 *end = (const __u8 *)(long)skb->data_end;
	const __u8 *ip = (const __u8 *)(long)skb->data + at;
	const __u8 *tcp;
	__u32 length;
	int is_4 = skb->protocol == swapped(ETH_IPV4);
	if (!(settings->on & (is_4 ? 1 : 2)))
		return TCX_NEXT;
	if (is_4) {
		// Without options or fragments.
		if (ip + 20 > end || ip[0] != 0x45 || ip[9] != TCP || ((ip[6] & 0x3f) | ip[7]))
			return TCX_NEXT;
		length = (((__u32)ip[2] << 8) | ip[3]) - 20;
		tcp = ip + 20;
	} else if (skb->protocol == swapped(ETH_IPV6)) {
		if (ip + 40 > end || ip[6] != TCP)
			return TCX_NEXT;
		length = ((__u32)ip[4] << 8) | ip[5];
		tcp = ip + 40;
	} else {
		return TCX_NEXT;
	}
	if (tcp + 20 > end)
		return TCX_NEXT;
	__u32 words = tcp[12] >> 4;
	if (words * 4 != length || !(tcp[13] & ACK) || (tcp[13] & OTHERS))
		return TCX_NEXT;
	__u32 ack = ((__u32)tcp[8] << 24) | ((__u32)tcp[9] << 16) | ((__u32)tcp[10] << 8) | tcp[11];
	counters->seen++;

	// No options, or timestamps in the usual layout: anything else may be SACK.
	int plain = words == 5;
	if (words == 8 && tcp + 24 <= end)
		plain = tcp[20] == 1 && tcp[21] == 1 && tcp[22] == 8 && tcp[23] == 10;
	__u64 now = now_ns();
	struct state fresh = { .hole = plain ? 0 : now, .window = now, .first = ack };
	struct state *state;
	// The IP header has no options: the ports follow the addresses.
	if (is_4) {
		struct flow4 flow;
		__builtin_memcpy(flow.words, tcp - 8, sizeof(flow.words));
		state = map_lookup(&FLOWS4, &flow);
		if (!state)
			map_update(&FLOWS4, &flow, &fresh, BPF_ANY);
	} else {
		struct flow6 flow;
		__builtin_memcpy(flow.words, tcp - 32, sizeof(flow.words));
		state = map_lookup(&FLOWS6, &flow);
		if (!state)
			map_update(&FLOWS6, &flow, &fresh, BPF_ANY);
	}
	if (!state)
		return TCX_NEXT;
	if (now - state->window > TENTH) {
		// Bytes of a longer time count for its share.
		__u64 tenths = (now - state->window) / TENTH;
		state->bytes = (__u32)((__u64)(ack - state->first) / (tenths ? tenths : 1));
		state->window = now;
		state->first = ack;
	}
	if (!plain)
		state->hole = now;
	// The first SACK block, after timestamps or alone, lies before the ACK number: a duplicate (RFC 2883).
	const __u8 *sack = 0;
	if (words >= 11 && tcp + 44 <= end && tcp[34] == 5)
		sack = tcp + 40;
	else if (words >= 8 && tcp + 32 <= end && tcp[22] == 5)
		sack = tcp + 28;
	int twice = sack && (__s32)(ack - (((__u32)sack[0] << 24) | ((__u32)sack[1] << 16) | ((__u32)sack[2] << 8) | sack[3])) >= 0;
	if (twice && state->led && now - state->led < SOON && now - state->twice > SOON) {
		state->strikes += state->strikes < STRIKES;
		state->twice = now;
	}
	if (state->hole && now - state->hole < CALM << (state->strikes & 15)) {
		counters->holes++;
		return TCX_NEXT;
	}
	if (state->bytes < THRESHOLD || state->bytes > settings->most)
		return TCX_NEXT;

	__u64 ahead = *bucket;
	if (ahead < now)
		ahead = now;
	if (ahead - now > settings->burst_ns) {
		counters->full++;
		return TCX_NEXT;
	}
	*bucket = ahead + (((__u64)(skb->len - at) * settings->ns_per_kib) >> 10);
	state->led = now;
	counters->steered++;
	if (!settings->has_hardware)
		return redirect(settings->second, 0);
	if (is_4)
		return redirect_neigh(settings->second, 0, 0, 0);
	// For IPv6 the kernel would find the best router of any device, and look for it on the second one.
	struct bpf_redir_neigh next = { .nh_family = AF_INET6 };
	__builtin_memcpy(next.ipv6_nh, settings->router, sizeof(next.ipv6_nh));
	return redirect_neigh(settings->second, &next, sizeof(next), 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
