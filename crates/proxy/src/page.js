// The player page: plays a video through the media port, reports the state of the player, and shows the proxy's status.
//
// External data is inserted into the page as text, never as markup. A stall is a wait for data after the first picture
// that is not caused by a seek.
"use strict";

const find = (id) => document.getElementById(id);
const video = find("video");
const media = document.querySelector("meta[name=media]").content;

const player = { url: null, session: null, started: false, seeking: false, waits: false, since: 0, stalls: 0, stalled: 0, ended: false };

function open(url) {
  Object.assign(player, { url, session: null, started: false, seeking: false, waits: false, since: 0, stalls: 0, stalled: 0, ended: false });
  find("url").value = url;
  find("says").textContent = "";
  video.src = media + url;
}

function ahead() {
  const { buffered, currentTime } = video;
  for (let n = 0; n < buffered.length; n++) {
    if (buffered.start(n) <= currentTime + 0.1 && currentTime <= buffered.end(n)) return buffered.end(n) - currentTime;
  }
  return 0;
}

function waits(now) {
  if (player.waits === now) return;
  player.waits = now;
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
  const has = player.url && !player.started && video.paused && ahead() > 1;
  return has ? "the video is ready, but this browser has not started it: press play, or use another player" : "";
}

async function report() {
  if (!player.url) return;
  const stalled = player.stalled + (player.waits ? (performance.now() - player.since) / 1000 : 0);
  find("buffer").textContent = ahead().toFixed(1) + " s";
  find("stalls").textContent = player.stalls + (player.stalls ? ", " + stalled.toFixed(1) + " s" : "");
  try {
    const answer = await fetch("state", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        url: player.url,
        position_s: video.currentTime || 0,
        buffer_s: ahead(),
        waits: player.waits || !player.started,
        stalls: player.stalls,
        stalled_s: stalled,
        ended: player.ended,
      }),
    });
    if (answer.ok) player.session = (await answer.json()).session;
  } catch {
    find("says").textContent = "the proxy does not respond";
  }
}

video.addEventListener("playing", () => { player.started = true; player.seeking = false; waits(false); });
video.addEventListener("timeupdate", () => { if (!video.seeking && !video.paused && video.readyState > 2) waits(false); });
video.addEventListener("seeking", () => { player.seeking = true; waits(false); });
video.addEventListener("waiting", () => { if (player.started && !player.seeking && !video.ended) waits(true); });
video.addEventListener("pause", () => waits(false));
video.addEventListener("ended", () => { player.ended = true; waits(false); report(); });
video.addEventListener("error", () => { find("says").textContent = video.error ? video.error.message || "this video cannot be played" : ""; waits(false); });
setInterval(report, 500);

const rate = (bits) => (bits / 1e6).toFixed(2) + " Mbit/s";
const bytes = (count) => (count / 1e6).toFixed(1) + " MB";
const joules = (value) => (typeof value === "number" ? value.toFixed(1) + " J" : "–");

function show(status) {
  // The segments of a playlist are separate sessions, so the rates of all active sessions are summed.
  const rates = {};
  for (const session of status.sessions) {
    for (const link of session.answers.length ? session.links : []) rates[link.name] = (rates[link.name] || 0) + link.rate_bps;
  }
  const mine = status.sessions.find((session) => session.session === player.session);
  const states = {};
  for (const link of mine ? mine.links : []) states[link.name] = link.state;
  const all = status.links.reduce((sum, link) => sum + (link.played ? link.played.bytes : 0), 0);
  find("links").replaceChildren(...status.links.map((link) => {
    const carried = link.played ? link.played.bytes : 0;
    const row = document.createElement("tr");
    const cells = [
      link.name + " (" + link.kind + (link.metered ? ", metered" : "") + ")", states[link.name] || link.state,
      rate(rates[link.name] || 0), bytes(carried), all ? (carried / all * 100).toFixed(0) + " %" : "–",
      joules(link.played && link.played.energy_j),
    ];
    for (const text of cells) row.appendChild(document.createElement("td")).textContent = text;
    return row;
  }));
  find("energy").textContent = joules(status.energy && status.energy.energy_j);
  find("metered").textContent = bytes(status.metered_bytes || 0);
  const next = status.ahead.reduce((sum, track) => sum + track.segments_ahead, 0);
  find("ahead").textContent = status.ahead.length ? next + " segments" : "–";
  if (!mine) return;
  const last = mine.answers[mine.answers.length - 1];
  find("frontier").textContent = last ? bytes(last.frontier) + (mine.total ? " of " + bytes(mine.total) : "") : "–";
  const rests = mine.decided ? mine.decided.rests : [];
  const why = mine.decided && mine.decided.why ? ": " + mine.decided.why : "";
  find("mode").textContent = (rests.length ? "without " + rests.join(", ") : "all links") + why;
  find("says").textContent = stuck() || mine.reason;
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
