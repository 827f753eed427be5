-- Bucket state that is not what an algorithm wrote.

local CORRUPT = 'corrupt'

-- Whether numbers read from a state are ones that arithmetic can be trusted
-- with: none is negative, so a sum within bounds bounds each of them, and
-- `unit` may be divided by.
local function sound(sum, unit)
  return sum < 2 ^ 53 and unit >= 1 and unit <= 2 ^ 51
end

-- A string that is not as this algorithm, marked `tag`, writes it: another's,
-- which counts as unused, or else corrupt.
local function foreign(text, tag)
  local mark = string.match(text, '^([bgfw])%d')
  return (not mark or mark == tag) and CORRUPT or nil
end
