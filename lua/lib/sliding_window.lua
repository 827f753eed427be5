-- Sliding window counter: two aligned counts, the older one weighted.
-- Twin of crates/algorithms/src/sliding_window.rs.
--
-- State: "w<generation>:<start ms of the later window>:<its count>:<the one before>:<W ms>"

local function define_sliding_window()
  local M = {}

  -- The counts as they stand in the window that starts at w.start. After an edit of W they are
  -- kept only if they belong to that window.
  local function counts(w, start, current, previous, length)
    if start >= w.start then
      return current, previous
    end
    if length == w.x and start + length >= w.start then
      return 0, current
    end
    return 0, 0
  end

  function M.load(w, now)
    w.asked, w.start = now, window.aligned_start(w, now)
    w.elapsed, w.current, w.previous = now - w.start, 0, 0
    local text, problem = read_string(w.key, 'w')
    if not text then
      return problem
    end
    local generation, start, current, previous, length =
      string.match(text, '^w(%d+):(%d+):(%d+):(%d+):(%d+)$')
    generation, start, length =
      stored_number(generation), stored_number(start), stored_unit(length)
    current, previous = stored_number(current), stored_number(previous)
    if not (generation and start and length and current and previous) then
      return CORRUPT
    end
    w.seen = generation
    local moved
    start, moved = window.reconcile(w, start, now)
    if moved then
      w.shifted = { start, current, previous, length }
    end
    now = start > now and start or now
    w.start = window.aligned_start(w, now)
    w.elapsed = now - w.start
    w.current, w.previous = counts(w, start, current, previous, length)
  end

  -- What is used, rounded up.
  local function estimate(w)
    return w.current + scale_up(w.x - w.elapsed, w.previous, w.x)
  end

  -- The earliest time into a window at which `previous` weighs at most `room`.
  local function elapsed_until(w, previous, room)
    if previous == 0 then
      return 0
    end
    local overlap = floor(room * w.x / previous)
    return overlap < w.x and w.x - overlap or 0
  end

  function M.fits(w, cost)
    return estimate(w) + cost <= w.limit
  end

  function M.charge(w, cost)
    w.current = w.current + cost
  end

  function M.debit(w, units)
    local added = math.min(units, M.remaining(w))
    w.current = w.current + added
    return added > 0
  end

  function M.remaining(w)
    return window.room(w, estimate(w))
  end

  function M.wait_ms(w, cost)
    local left, into = w.limit - cost
    if left >= w.current then
      into = elapsed_until(w, w.previous, left - w.current)
    else
      into = w.x + elapsed_until(w, w.current, left)
    end
    return w.start + into - w.asked
  end

  function M.reset_after_ms(w)
    if w.current > 0 then
      return w.start + 2 * w.x - w.asked
    end
    return w.previous > 0 and w.start + w.x - w.asked or 0
  end

  function M.delay_ms()
    return 0
  end

  local function write(w, generation, start, current, previous, length, ttl)
    local text =
      string.format('w%.0f:%.0f:%.0f:%.0f:%.0f', generation, start, current, previous, length)
    redis.call('SET', w.key, text, 'PX', ttl)
  end

  function M.save(w, ttl)
    write(w, w.generation, w.start, w.current, w.previous, w.x, ttl)
  end

  function M.save_shifted(w, ttl)
    local s = w.shifted
    write(w, w.seen, s[1], s[2], s[3], s[4], ttl)
  end

  return M
end
