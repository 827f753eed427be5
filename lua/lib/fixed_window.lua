-- Fixed window counter. Twin of crates/algorithms/src/fixed_window.rs.
--
-- State: "f<generation>:<start ms>:<used>"

-- open_at(w, now, start): the start of the window open at `now`, and whether it
-- is the one remembered to have started at `start`.
local function define_fixed_window(open_at)
  local M = {}

  function M.load(w, now)
    w.asked, w.start, w.used = now, (open_at(w, now, now)), 0
    local text, problem = read_string(w.key, 'f')
    if not text then
      return problem
    end
    local generation, start, used = string.match(text, '^f(%d+):(%d+):(%d+)$')
    generation, start, used =
      stored_number(generation), stored_number(start), stored_number(used)
    if not (generation and start and used) then
      return CORRUPT
    end
    w.seen = generation
    local moved, same
    start, moved = window.reconcile(w, start, now)
    if moved then
      w.shifted = { start, used }
    end
    w.start, same = open_at(w, start > now and start or now, start)
    w.used = same and used or 0
  end

  function M.fits(w, cost)
    return w.used + cost <= w.limit
  end

  function M.charge(w, cost)
    w.used = w.used + cost
  end

  function M.debit(w, units)
    local added = math.min(units, window.room(w, w.used))
    w.used = w.used + added
    return added > 0
  end

  function M.remaining(w)
    return window.room(w, w.used)
  end

  function M.wait_ms(w)
    return w.start + w.x - w.asked
  end

  function M.reset_after_ms(w)
    return w.used == 0 and 0 or w.start + w.x - w.asked
  end

  function M.delay_ms()
    return 0
  end

  local function write(w, generation, start, used, ttl)
    local text = string.format('f%.0f:%.0f:%.0f', generation, start, used)
    redis.call('SET', w.key, text, 'PX', ttl)
  end

  function M.save(w, ttl)
    write(w, w.generation, w.start, w.used, ttl)
  end

  function M.save_shifted(w, ttl)
    write(w, w.seen, w.shifted[1], w.shifted[2], ttl)
  end

  return M
end

-- Windows at multiples of W. The one that holds the remembered start is the
-- same, so that a count survives an edit of W only into the window it belongs to.
local function open_at_epoch(w, now, start)
  local current = window.aligned_start(w, now)
  return current, start >= current
end

-- Windows that start at the first admission that finds none open.
local function open_at_first_request(w, now, start)
  if now - start < w.x then
    return start, true
  end
  return now, false
end
