-- Generic cell rate algorithm. Twin of crates/algorithms/src/gcra.rs.
--
-- State: "g<generation>:<TAT ms>", then ":<fraction>:<parts per ms>" unless the fraction is 0.
-- Loaded, the distance from now to the TAT is a bucket's debt.

local PLAIN = 'g' .. WHOLE .. ':' .. WHOLE
local WITH_FRACTION = PLAIN .. ':' .. WHOLE .. ':' .. WHOLE

local function encode(b, generation)
  local parts = b.debt % b.y
  local tat = now + (b.debt - parts) / b.y
  if parts > 0 then
    return string.format(WITH_FRACTION, generation, tat, parts, b.y)
  end
  return string.format(PLAIN, generation, tat)
end

function M.load(b, text)
  local generation, tat, parts, unit = string.match(text, '^g(%d+):(%d+):(%d+):(%d+)$')
  if not generation then
    generation, tat = string.match(text, '^g(%d+):(%d+)$')
    if not generation then
      return unplain(b, text, 'g')
    end
    parts, unit = 0, 1
  end
  generation, tat, parts, unit = generation + 0, tat + 0, parts + 0, unit + 0
  if not sound(generation + tat, unit) or parts >= unit then
    return CORRUPT
  end
  b.seen = generation
  local ahead, full = tat - now, b.limit * b.x
  if ahead < 0 then
    return
  end
  -- Whole milliseconds first: the product is built only where it is small.
  local far = ahead > math.floor(full / b.y)
  local debt = far and full or ahead * b.y + scale_up(parts, b.y, unit)
  b.debt = debt < full and debt or full
  if far or debt > full then
    b.shifted = encode(b, generation)
  end
end

function M.encode(b)
  return encode(b, b.generation)
end
