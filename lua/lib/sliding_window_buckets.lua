-- Sliding window of sub-windows. Twin of crates/algorithms/src/sliding_window_buckets.rs.
--
-- State: a hash of sub-window index (its start in ms / its width in ms) to
-- count, with "w" the width and "g" the generation.

local function define_sliding_window_buckets(strict)
  local M = {}

  local CHUNK = 1000 -- unpack() has a limit

  -- From the caller's instant until a sub-window is forgotten.
  local function forgotten_after_ms(w, index)
    return (index + w.span) * w.width - w.asked
  end

  -- The stored counts as a list of {index, units}, oldest first; nil if there are none.
  local function read(w)
    local flat = redis.pcall('HGETALL', w.key)
    if flat.err then
      return nil, CORRUPT
    end
    local counts, width, generation = {}, nil, nil
    for i = 1, #flat, 2 do
      local field, number = flat[i], stored_number(string.match(flat[i + 1], '^%d+$'))
      if field == 'w' then
        width = stored_unit(flat[i + 1])
      elseif field == 'g' then
        generation = number
      else
        local index = string.match(field, '^%-?%d+$')
        index = index and tonumber(index)
        if not (index and number) or math.abs(index) >= NUMBER_MAX then
          return nil, CORRUPT
        end
        counts[#counts + 1] = { index, number, field }
      end
    end
    if #flat == 0 then
      return nil
    end
    if not (width and generation and counts[1]) then
      return nil, CORRUPT
    end
    table.sort(counts, function(a, b)
      return a[1] < b[1]
    end)
    w.seen, w.stored_width = generation, width
    return counts
  end

  -- The same counts with the newest in the sub-window of `now`.
  local function shift(w, counts, now)
    local by = counts[#counts][1] - floor(now / w.stored_width)
    for _, count in ipairs(counts) do
      count[1] = count[1] - by
    end
  end

  -- The sub-windows that count, in today's width: each count belongs to the sub-window in which
  -- its own started.
  local function live(w, counts)
    local found = {}
    for _, count in ipairs(counts) do
      local index = floor(count[1] * w.stored_width / w.width)
      local last = found[#found]
      if index > w.current - w.span then
        if last and last[1] == index then
          last[2] = last[2] + count[2]
        else
          found[#found + 1] = { index, count[2] }
        end
        w.used = w.used + count[2]
      end
    end
    return found
  end

  function M.load(w, now)
    w.width = w.x / w.y
    w.span = strict and w.y + 1 or w.y
    w.asked, w.current, w.used, w.live = now, floor(now / w.width), 0, {}
    local counts, problem = read(w)
    if not counts then
      return problem
    end
    if counts[#counts][1] * w.stored_width - now > w.x then
      shift(w, counts, now)
      w.shifted = counts
    end
    w.counts = counts
    local newest = counts[#counts][1] * w.stored_width
    w.current = floor((newest > now and newest or now) / w.width)
    w.live = live(w, counts)
  end

  function M.fits(w, cost)
    return w.used + cost <= w.limit
  end

  function M.charge(w, cost)
    local last = w.live[#w.live]
    if last and last[1] == w.current then
      last[2] = last[2] + cost
    else
      w.live[#w.live + 1] = { w.current, cost }
    end
    w.used = w.used + cost
  end

  function M.debit(w, units)
    units = math.min(units, M.remaining(w))
    if units > 0 then
      M.charge(w, units)
    end
    return units > 0
  end

  function M.remaining(w)
    return window.room(w, w.used)
  end

  function M.wait_ms(w, cost)
    local excess = w.used + cost - w.limit
    for _, count in ipairs(w.live) do
      excess = excess - count[2]
      if excess <= 0 then
        return forgotten_after_ms(w, count[1])
      end
    end
    return 0
  end

  function M.reset_after_ms(w)
    local newest = w.live[#w.live]
    return newest and forgotten_after_ms(w, newest[1]) or 0
  end

  function M.delay_ms()
    return 0
  end

  -- Replaces the whole hash.
  local function rewrite(w, generation, width, counts, ttl)
    redis.call('DEL', w.key)
    local flat = { 'w', digits(width), 'g', digits(generation) }
    for i, count in ipairs(counts) do
      flat[#flat + 1] = digits(count[1])
      flat[#flat + 1] = digits(count[2])
      if #flat >= CHUNK or i == #counts then
        redis.call('HSET', w.key, unpack(flat))
        flat = {}
      end
    end
    redis.call('PEXPIRE', w.key, ttl)
  end

  -- Changes what changed: the newest count, and the ones that count no more.
  local function update(w, ttl)
    local gone = {}
    for _, count in ipairs(w.counts) do
      if count[1] <= w.current - w.span then
        gone[#gone + 1] = count[3]
      end
    end
    if #gone > 0 then
      redis.call('HDEL', w.key, unpack(gone))
    end
    local newest = w.live[#w.live]
    local flat = { digits(newest[1]), digits(newest[2]) }
    if w.generation ~= w.seen then
      flat[3], flat[4] = 'g', digits(w.generation)
    end
    redis.call('HSET', w.key, unpack(flat))
    redis.call('PEXPIRE', w.key, ttl)
  end

  function M.save(w, ttl)
    if w.counts and not w.shifted and w.stored_width == w.width then
      update(w, ttl)
    else
      rewrite(w, w.generation, w.width, w.live, ttl)
    end
  end

  function M.save_shifted(w, ttl)
    rewrite(w, w.seen, w.stored_width, w.shifted, ttl)
  end

  return M
end
