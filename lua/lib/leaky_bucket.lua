-- Leaky bucket as a queue; as a meter it is a token bucket.
-- Twin of crates/algorithms/src/leaky_bucket.rs.
--
-- State: a token bucket's, whose debt is the level.

local function define_leaky_bucket_queue(token_bucket)
  local M = setmetatable({}, { __index = token_bucket })

  -- How long the level takes to drain beyond the longest delay, b.z.
  local function overdue_ms(b)
    local delay = ceil(b.debt / b.q)
    return delay > b.z and delay - b.z or 0
  end

  function M.fits(b, cost)
    return token_bucket.fits(b, cost) and overdue_ms(b) == 0
  end

  function M.remaining(b)
    return overdue_ms(b) > 0 and 0 or token_bucket.remaining(b)
  end

  function M.wait_ms(b, cost)
    return b.ahead + math.max(bucket.wait_ms(b, b.debt, cost), overdue_ms(b))
  end

  -- Counted on the bucket's clock: after a small step back of the caller's, spacing holds.
  function M.delay_ms(b)
    return ceil(b.debt / b.q)
  end

  return M
end
