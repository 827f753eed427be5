-- Sliding window log. Twin of crates/algorithms/src/sliding_window_log.rs.
--
-- State: a list of "<ms>:<units>:<running total>:<generation>", oldest first,
-- one for all admissions of a millisecond. The total makes it possible to find
-- by bisection what is used and when enough of it is forgotten; it wraps.

local function define_sliding_window_log()
  local M = {}

  local TOTAL_WRAP = 1000000000 -- far above the most a log can hold
  local CHUNK = 1000 -- unpack() has a limit

  -- The entry at a position from 0 (or from the end, if negative); nil if there is none.
  local function entry(w, position)
    local text = redis.pcall('LINDEX', w.key, digits(position))
    if not text then
      return nil
    end
    if type(text) ~= 'string' then
      return nil, CORRUPT
    end
    local at, units, total, generation = string.match(text, '^(%-?%d+):(%d+):(%d+):(%d+)$')
    units, total, generation = stored_number(units), stored_number(total), stored_number(generation)
    at = at and tonumber(at)
    if not (at and units and total and generation) or math.abs(at) >= NUMBER_MAX then
      return nil, CORRUPT
    end
    return { at = at - w.shift, units = units, total = total, generation = generation }
  end

  -- Units admitted after the total `since`, up to and including the total `upto`.
  local function between(since, upto)
    return (upto - since) % TOTAL_WRAP
  end

  -- The first position in [low, high) whose entry is wanted; `high` if none is.
  -- Entries are unwanted up to one, and wanted from there on.
  local function bisect(w, low, high, wanted)
    while low < high do
      local middle = floor((low + high) / 2)
      local found = entry(w, middle)
      if found and wanted(found) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low
  end

  -- Finds the first entry that counts, and the units from it on.
  local function find_live(w, head)
    local horizon = w.now - w.x
    if head.at > horizon then
      w.first = 0
    else
      w.first = bisect(w, 1, w.length, function(e)
        return e.at > horizon
      end)
      head = entry(w, w.first)
    end
    if not head then
      return CORRUPT
    end
    w.forgotten = (head.total - head.units) % TOTAL_WRAP
    w.stored = between(w.forgotten, w.newest.total)
  end

  function M.load(w, now)
    w.asked, w.now, w.shift = now, now, 0
    w.first, w.length, w.stored, w.added, w.forgotten = 0, 0, 0, 0, 0
    local newest, problem = entry(w, -1)
    if not newest then
      return problem
    end
    w.newest, w.seen = newest, newest.generation
    if newest.at - now > w.x then
      w.shift = newest.at - now
      w.shifted = true
      newest.at = now
    end
    w.now = newest.at > now and newest.at or now
    w.length = redis.call('LLEN', w.key)
    if newest.at <= w.now - w.x then
      w.first, w.forgotten = w.length, newest.total
      return
    end
    local head
    head, problem = entry(w, 0)
    if not head then
      return problem
    end
    return find_live(w, head)
  end

  local function used(w)
    return w.stored + w.added
  end

  function M.fits(w, cost)
    return used(w) + cost <= w.limit
  end

  function M.charge(w, cost)
    w.added = w.added + cost
  end

  function M.debit(w, units)
    w.added = math.min(units, M.remaining(w))
    return w.added > 0
  end

  function M.remaining(w)
    return window.room(w, used(w))
  end

  function M.wait_ms(w, cost)
    local excess = used(w) + cost - w.limit
    local at = bisect(w, w.first, w.length, function(e)
      return between(w.forgotten, e.total) >= excess
    end)
    local last = at < w.length and entry(w, at)
    return (last and last.at or w.now) + w.x - w.asked
  end

  function M.reset_after_ms(w)
    if w.added > 0 then
      return w.now + w.x - w.asked
    end
    return w.stored > 0 and w.newest.at + w.x - w.asked or 0
  end

  function M.delay_ms()
    return 0
  end

  local function encode(at, units, total, generation)
    return string.format('%.0f:%.0f:%.0f:%.0f', at, units, total, generation)
  end

  -- Rewrites every entry with its time in the shifted time base.
  local function rewrite(w)
    local texts = redis.call('LRANGE', w.key, '0', '-1')
    redis.call('DEL', w.key)
    for from = 1, #texts, CHUNK do
      local chunk = {}
      for i = from, math.min(#texts, from + CHUNK - 1) do
        local at, rest = string.match(texts[i], '^(%-?%d+)(:.*)$')
        chunk[#chunk + 1] = at and digits(tonumber(at) - w.shift) .. rest or texts[i]
      end
      redis.call('RPUSH', w.key, unpack(chunk))
    end
    w.shift = 0
  end

  function M.save(w, ttl)
    if w.first >= w.length then
      redis.call('DEL', w.key)
    elseif w.shifted then
      rewrite(w)
    end
    if w.first > 0 and w.first < w.length then
      redis.call('LTRIM', w.key, digits(w.first), '-1')
    end
    local newest = w.stored > 0 and w.newest
    if newest and newest.at == w.now then
      local total = (newest.total + w.added) % TOTAL_WRAP
      local text = encode(w.now, newest.units + w.added, total, w.generation)
      redis.call('LSET', w.key, '-1', text)
    else
      local total = ((newest and newest.total or 0) + w.added) % TOTAL_WRAP
      redis.call('RPUSH', w.key, encode(w.now, w.added, total, w.generation))
    end
    redis.call('PEXPIRE', w.key, ttl)
  end

  function M.save_shifted(w, ttl)
    rewrite(w)
    redis.call('PEXPIRE', w.key, ttl)
  end

  return M
end
