"""From nothing to local data, wheels and SIFs; `setup_r2e_data_and_sifs.sh` runs it."""
