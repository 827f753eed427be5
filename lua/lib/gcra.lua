-- Generic cell rate algorithm. Twin of crates/algorithms/src/gcra.rs.
--
-- State: "g<generation>:<TAT ms>", then ":<fraction>:<parts per ms>" unless the fraction is 0.

local function define_gcra()
  local M = {}

  -- Parts from `now` to the TAT, at most the capacity, and whether it was more.
  local function distance(b, now, tat, parts, q)
    local ahead = tat - now
    if ahead < 0 then
      return 0, false
    end
    local full, horizon = bucket.full(b), bucket.horizon_ms(b)
    if ahead > horizon then
      return full, true
    end
    local debt = ahead * b.q + scale_up(parts, b.q, q)
    if debt > full then
      return full, true
    end
    return debt, false
  end

  function M.load(b, now)
    b.p, b.q = b.x, b.y
    b.debt, b.now = 0, now
    local text, problem = read_string(b.key, 'g')
    if not text then
      return problem
    end
    local generation, tat, parts, q = string.match(text, '^g(%d+):(%d+):(%d+):(%d+)$')
    if not generation then
      generation, tat = string.match(text, '^g(%d+):(%d+)$')
      parts, q = '0', '1'
    end
    generation, tat, parts, q =
      stored_number(generation), stored_number(tat), stored_number(parts), stored_unit(q)
    if not (generation and tat and parts and q) or parts >= q then
      return CORRUPT
    end
    b.seen = generation
    b.debt, b.shifted = distance(b, now, tat, parts, q)
  end

  function M.fits(b, cost)
    return cost <= bucket.remaining(b, b.debt)
  end

  function M.charge(b, cost)
    b.debt = bucket.owing(b, b.debt, cost)
  end

  function M.debit(b, units)
    local before = b.debt
    M.charge(b, units)
    return b.debt > before
  end

  function M.remaining(b)
    return bucket.remaining(b, b.debt)
  end

  function M.wait_ms(b, cost)
    return bucket.wait_ms(b, b.debt, cost)
  end

  function M.reset_after_ms(b)
    return ceil(b.debt / b.q)
  end

  function M.delay_ms()
    return 0
  end

  local function write(b, generation, ttl)
    local parts = b.debt % b.q
    local text = string.format('g%.0f:%.0f', generation, b.now + (b.debt - parts) / b.q)
    if parts > 0 then
      text = text .. string.format(':%.0f:%.0f', parts, b.q)
    end
    redis.call('SET', b.key, text, 'PX', ttl)
  end

  function M.save(b, ttl)
    write(b, b.generation, ttl)
  end

  function M.save_shifted(b, ttl)
    write(b, b.seen, ttl)
  end

  return M
end
