"""Price lists in the sandbox market: gpuhunt and SkyPilot, and the rows that both show."""
