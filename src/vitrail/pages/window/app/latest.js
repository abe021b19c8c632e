// Requests of which only the last matters: a burst of changes is one request, and a newer one ends the older.

/**
 * A function that asks `run(signal, ...values)` once changes have paused for `wait` ms, and hands on the answer of the
 * last request alone; `stop()` of it forgets what is under way.
 * >>> const ask = latest((signal, edits) => api.post("what_if", blob, edits, { signal }), { wait: 120, done: show, failed: ctx.complain })
 */
export function latest(run, { wait = 0, done, failed, busy = () => {} }) {
  let timer = 0;
  let aborter = null;
  const stop = () => {
    clearTimeout(timer);
    aborter?.abort();
    aborter = null;
    busy(false);
  };
  const ask = (...values) => {
    stop();
    busy(true);
    const mine = new AbortController();
    aborter = mine;
    timer = setTimeout(async () => {
      try {
        const found = await run(mine.signal, ...values);
        if (aborter === mine) done(found, ...values);
      } catch (error) {
        if (aborter === mine && error.name !== "AbortError") failed(error);
      }
      if (aborter === mine) busy(false);
    }, wait);
  };
  ask.stop = stop;
  return ask;
}
