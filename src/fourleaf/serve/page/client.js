// The server's API: JSON, and answers as typed events. Faults come as Trouble, with words for people.

const KEY = "fourleaf.key";
const MODEL = "fourleaf.model";

/** What went wrong, in words. kind: "key" wants an API key, "gone" has no connection, "busy" may be tried again. */
export class Trouble extends Error {
  constructor(message, kind = "fault", param = null) {
    super(message);
    this.kind = kind;
    this.param = param;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export const model = { id: "", names: [], capabilities: null };

function headers() {
  const made = { "Content-Type": "application/json" };
  if (key.get()) made.Authorization = `Bearer ${key.get()}`;
  return made;
}

async function send(path, body, signal) {
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer. Is `fourleaf serve` still running?", "gone");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  const found = await response.json().catch(() => ({}));
  const detail = Array.isArray(found.detail) ? found.detail : null; // the decision API's form
  const said = found.error?.message ?? detail?.map((one) => `${one.loc.slice(1).join(".")}: ${one.msg}`).join("; ");
  if (response.status === 401) return new Trouble(said ?? "This server wants its API key.", "key");
  const text = said ?? `The server answered ${response.status} ${response.statusText}.`;
  if (response.status === 429) return new Trouble(`${text} The line is full; try again in a moment.`, "busy");
  if (response.status === 503) return new Trouble(text, "busy");
  return new Trouble(text, "fault", found.error?.param ?? null);
}

export const getJSON = async (path) => (await send(path)).json();
export const getText = async (path) => (await send(path)).text();
export const postJSON = async (path, body, signal) => (await send(path, body, signal)).json();

/** Finds out what is served. */
export async function connect() {
  const list = await getJSON("/v1/models");
  model.names = list.data.filter((card) => (card.status ?? "loaded") === "loaded").map((card) => card.id);
  if (!model.names.length) throw new Trouble("The server has loaded no model yet.", "busy");
  const wished = sessionStorage.getItem(MODEL);
  model.id = model.names.includes(wished) ? wished : model.names[0];
  model.capabilities = await getJSON(`/v1/capabilities?model=${encodeURIComponent(model.id)}`);
  return model;
}

/** Takes another of the models. The page starts anew, since all views depend on what the model can. */
export function useModel(name) {
  sessionStorage.setItem(MODEL, name);
  location.reload();
}

export const can = (field) => model.capabilities?.fields.includes(field) ?? false;

/** One answer's events: calls `take(name, data, ms)` for each, ms since the request was sent. */
export async function answer(body, take, signal) {
  const asked = { model: model.id, ...body };
  if (can("logprobs")) asked.logprobs = true; // commits then say how sure the model was, and in which pass
  const began = performance.now();
  const response = await send("/v1/chat/events", asked, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let isOver = false;
  for (;;) {
    const { done, value } = await read(reader);
    if (done) break;
    const ms = performance.now() - began;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const { name, data } of parts.map(parse).filter(Boolean)) {
      if (name === "error") throw new Trouble(data.error?.message ?? "The answer failed.");
      isOver ||= name === "done";
      take(name, data, ms);
    }
  }
  if (!isOver) throw new Trouble(BROKEN, "gone");
}

const BROKEN = "The connection broke in the middle of the answer.";

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Trouble(BROKEN, "gone");
  }
}

function parse(part) {
  let name = "message";
  let data = "";
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return data ? { name, data: JSON.parse(data) } : null;
}
