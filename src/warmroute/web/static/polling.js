// Asking the router for JSON, again and again, and saying in a sentence why there was no answer.

const ANSWER_WITHIN_MS = 8_000;

/** There is no usable answer; the message is one sentence for the person at the page. */
class NoAnswer extends Error {}

export async function getJson(path) {
  const response = await request(path);
  if (response.status === 401) location.reload(); // the sign-in page comes instead
  if (!response.ok) throw new NoAnswer(`${path} answered HTTP ${response.status}.`);
  try {
    return await response.json();
  } catch {
    throw new NoAnswer(`${path} did not answer JSON. Is this the router's admin port, or is a login page in between?`);
  }
}

async function request(path) {
  try {
    return await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  } catch (error) {
    if (error.name !== "TimeoutError") throw new NoAnswer(`${path} could not be reached.`);
    throw new NoAnswer(`${path} did not answer within ${ANSWER_WITHIN_MS / 1000} s.`);
  }
}

export function problemOf(error) {
  if (error instanceof NoAnswer) return { title: "The router does not answer this page", lines: [error.message] };
  console.error(error);
  const advice = "Reload the page: the router may have been upgraded since it was opened.";
  return { title: "This page does not understand the router's answer", lines: [advice, String(error)] };
}

/**
 * Gives every answer of `path()` to `use`, one request at a time, and rests while the page is hidden or `needless()`.
 * When there is no answer, or `use` throws, `fail` gets {title, lines} and the asking goes on. Returns a function that
 * asks at once.
 */
export function poll(path, everyMs, use, fail, needless = () => false) {
  let timer = 0;
  let asking = false;
  async function turn() {
    clearTimeout(timer);
    if (asking || document.hidden) return;
    if (needless()) {
      timer = setTimeout(turn, everyMs);
      return;
    }
    asking = true;
    try {
      use(await getJson(path()));
    } catch (error) {
      fail(problemOf(error));
    } finally {
      asking = false;
      timer = setTimeout(turn, everyMs);
    }
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return turn;
}
