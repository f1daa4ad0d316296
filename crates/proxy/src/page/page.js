// The player page: plays a video through the media port, reports the state of the player, and shows the proxy's status.
//
// External data is inserted into the page as text, never as markup. A stall is a wait for data after the first picture
// that is not caused by a seek.
"use strict";

const find = (id) => document.getElementById(id);
const video = find("video");
const media = document.querySelector("meta[name=media]").content;

const player = { url: null, session: null, started: false, seeking: false, waiting: false, since: 0, stalls: 0, stalled: 0, ended: false };

function open(url) {
  Object.assign(player, { url, session: null, started: false, seeking: false, waiting: false, since: 0, stalls: 0, stalled: 0, ended: false });
  find("url").value = url;
  find("message").textContent = "";
  video.src = media + url;
}

function bufferedAhead() {
  const { buffered, currentTime } = video;
  for (let n = 0; n < buffered.length; n++) {
    if (buffered.start(n) <= currentTime + 0.1 && currentTime <= buffered.end(n)) return buffered.end(n) - currentTime;
  }
  return 0;
}

function setWaiting(now) {
  if (player.waiting === now) return;
  player.waiting = now;
  if (now) {
    player.since = performance.now();
    player.stalls += 1;
  } else {
    player.stalled += (performance.now() - player.since) / 1000;
  }
  report();
}

// Enough data is buffered, but playback does not start: autoplay is forbidden, or the browser's HLS player has stopped at
// the start (Chromium, slow segments).
function stuck() {
  const has = player.url && !player.started && video.paused && bufferedAhead() > 1;
  return has ? "the video is ready, but this browser has not started it: press play, or use another player" : "";
}

async function report() {
  if (!player.url) return;
  const stalled = player.stalled + (player.waiting ? (performance.now() - player.since) / 1000 : 0);
  find("buffer").textContent = bufferedAhead().toFixed(1) + " s";
  find("stalls").textContent = player.stalls + (player.stalls ? ", " + stalled.toFixed(1) + " s" : "");
  try {
    const response = await fetch("state", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        url: player.url,
        position_s: video.currentTime || 0,
        buffer_s: bufferedAhead(),
        waiting: player.waiting || !player.started,
        stalls: player.stalls,
        stalled_s: stalled,
        ended: player.ended,
      }),
    });
    if (response.ok) player.session = (await response.json()).session;
  } catch {
    find("message").textContent = "the proxy does not respond";
  }
}

video.addEventListener("playing", () => { player.started = true; player.seeking = false; setWaiting(false); });
video.addEventListener("timeupdate", () => { if (!video.seeking && !video.paused && video.readyState > 2) setWaiting(false); });
video.addEventListener("seeking", () => { player.seeking = true; setWaiting(false); });
video.addEventListener("waiting", () => { if (player.started && !player.seeking && !video.ended) setWaiting(true); });
video.addEventListener("pause", () => setWaiting(false));
video.addEventListener("ended", () => { player.ended = true; setWaiting(false); report(); });
video.addEventListener("error", () => { find("message").textContent = video.error ? video.error.message || "this video cannot be played" : ""; setWaiting(false); });
setInterval(report, 500);

const rate = (bits) => (bits / 1e6).toFixed(2) + " Mbit/s";
const bytes = (count) => (count / 1e6).toFixed(1) + " MB";
const joules = (value) => (typeof value === "number" ? value.toFixed(1) + " J" : "–");

function show(status) {
  // The segments of a playlist are separate sessions, so the rates of all active sessions are summed.
  const rates = {};
  for (const session of status.sessions) {
    for (const link of session.responses.length ? session.links : []) rates[link.name] = (rates[link.name] || 0) + link.rate_bps;
  }
  const mine = status.sessions.find((session) => session.session === player.session);
  const states = {};
  for (const link of mine ? mine.links : []) states[link.name] = link.state;
  const all = status.links.reduce((sum, link) => sum + (link.media ? link.media.bytes : 0), 0);
  find("links").replaceChildren(...status.links.map((link) => {
    const carried = link.media ? link.media.bytes : 0;
    const row = document.createElement("tr");
    const cells = [
      link.name + " (" + link.kind + (link.metered ? ", metered" : "") + ")", states[link.name] || link.state,
      rate(rates[link.name] || 0), bytes(carried), all ? (carried / all * 100).toFixed(0) + " %" : "–",
      joules(link.media && link.media.energy_j),
    ];
    for (const text of cells) row.appendChild(document.createElement("td")).textContent = text;
    return row;
  }));
  find("energy").textContent = joules(status.energy && status.energy.energy_j);
  find("metered").textContent = bytes(status.metered_bytes || 0);
  const next = status.prefetches.reduce((sum, track) => sum + track.prefetched_segments, 0);
  find("prefetched").textContent = status.prefetches.length ? next + " segments" : "–";
  if (!mine) return;
  const last = mine.responses[mine.responses.length - 1];
  find("received").textContent = last ? bytes(last.in_order_end) + (mine.total ? " of " + bytes(mine.total) : "") : "–";
  const standby = mine.decisions.standby_links;
  const reason = mine.decisions.reason ? ": " + mine.decisions.reason : "";
  find("mode").textContent = (standby.length ? "without " + standby.join(", ") : "all links") + reason;
  find("message").textContent = stuck() || mine.reason;
}

new EventSource("events").onmessage = (message) => {
  const event = JSON.parse(message.data);
  if (event.event === "status") return show(event.status);
  const { event: kind, session, ...rest } = event;
  const line = document.createElement("li");
  line.textContent = kind + " " + Object.values(rest).filter((value) => value !== null).join(" ");
  find("events").prepend(line);
  while (find("events").childElementCount > 100) find("events").lastChild.remove();
};

find("open").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = "#" + find("url").value;
});
const named = () => { if (location.hash.length > 1) open(location.hash.slice(1)); };
addEventListener("hashchange", named);
named();
