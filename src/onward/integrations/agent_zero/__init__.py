"""Plugin for Agent Zero: records its tasks, takes votes, shows reports, and adds two profiles that train."""
