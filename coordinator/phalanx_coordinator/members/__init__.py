"""The machines of a group: started, admitted, connected, watched, lost and brought back."""
