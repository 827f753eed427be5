-- Token bucket. Twin of crates/algorithms/src/token_bucket.rs.
--
-- State: "b<generation>:<debt in parts>:<ms of the last admission>:<parts per unit>"

local function define_token_bucket()
  local M = {}

  function M.load(b, now)
    b.p, b.q = b.x, b.y
    b.debt, b.at, b.ahead = 0, now, 0
    local text, problem = read_string(b.key, 'b')
    if not text then
      return problem
    end
    local generation, debt, at, p = string.match(text, '^b(%d+):(%d+):(%d+):(%d+)$')
    generation, debt, at, p =
      stored_number(generation), stored_number(debt), stored_number(at), stored_unit(p)
    if not (generation and debt and at and p) then
      return CORRUPT
    end
    b.seen = generation
    if at - now > bucket.horizon_ms(b) then
      b.shifted = { debt, now, p }
      at = now
    end
    b.at = at > now and at or now
    b.ahead = b.at - now
    b.debt = bucket.drained(b, bucket.adopt(b, debt, p), b.at - at)
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
    return b.ahead + bucket.wait_ms(b, b.debt, cost)
  end

  function M.reset_after_ms(b)
    return b.debt == 0 and 0 or b.ahead + ceil(b.debt / b.q)
  end

  function M.delay_ms()
    return 0
  end

  local function write(b, generation, debt, at, p, ttl)
    local text = string.format('b%.0f:%.0f:%.0f:%.0f', generation, debt, at, p)
    redis.call('SET', b.key, text, 'PX', ttl)
  end

  function M.save(b, ttl)
    write(b, b.generation, b.debt, b.at, b.p, ttl)
  end

  function M.save_shifted(b, ttl)
    write(b, b.seen, b.shifted[1], b.shifted[2], b.shifted[3], ttl)
  end

  return M
end
