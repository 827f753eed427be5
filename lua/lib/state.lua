-- Reading bucket state that may be absent, another algorithm's, or not ours.

local CORRUPT = 'corrupt'

-- The string at `key`, nil where there is none or it is another algorithm's
-- (which counts as unused), or nil and CORRUPT.
local function read_string(key, tag)
  local text = redis.pcall('GET', key)
  if not text then
    return nil
  end
  if type(text) ~= 'string' then
    return nil, CORRUPT
  end
  local first = string.sub(text, 1, 1)
  if first == tag then
    return text
  end
  return nil, not string.find(first, '^[bgfw]') and CORRUPT or nil
end
